"""Logging in and out, for members and operators alike: the admin's own log-in is for staff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError
from django.urls import reverse

if TYPE_CHECKING:
    StyledForm = AuthenticationForm
else:
    from unfold.forms import AuthenticationForm as StyledForm


class LoginForm(StyledForm):
    """Styled as the admin's, but for every user with a password."""

    error_messages = {
        "invalid_login": "This name and password do not belong together. Both are case-sensitive. "
        "If you have forgotten yours, an operator sends you a link that sets another one.",
        "inactive": "This user is not active any more: an operator can change that.",
    }

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        AuthenticationForm.confirm_login_allowed(self, user)  # type: ignore[arg-type]


class OperatorLoginForm(LoginForm):
    """The same at the admin's own address, to which members come who open a page of it."""

    error_messages = LoginForm.error_messages | {
        "not_an_operator": "These pages are for operators. Members log in at {login}.",
    }

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        super().confirm_login_allowed(user)
        if not getattr(user, "is_staff", False):
            message = self.error_messages["not_an_operator"].format(login=reverse("login"))
            raise ValidationError(message, code="not_an_operator")


class Login(LoginView):
    template_name = "pages/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        return {
            **admin.site.each_context(self.request),
            **context,
            "title": "Log in",
            "app_path": self.request.get_full_path(),
        }


class Logout(LogoutView):
    """Logs the user out on a POST and redirects to the log-in page."""

    def get_default_redirect_url(self) -> str:
        return reverse("login")
