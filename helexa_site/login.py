"""Logging in and out, for members and operators alike: the admin's own log-in is for staff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import reverse

if TYPE_CHECKING:
    StyledForm = AuthenticationForm
else:
    from unfold.forms import AuthenticationForm as StyledForm


class LoginForm(StyledForm):
    """Styled as the admin's, but for every user with a password."""

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        AuthenticationForm.confirm_login_allowed(self, user)  # type: ignore[arg-type]


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
    """By POST; leads back to the log-in."""

    def get_default_redirect_url(self) -> str:
        return reverse("login")
