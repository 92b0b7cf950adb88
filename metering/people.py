"""``/password/`` changes one's own password; a link under ``/welcome/`` sets the first one.

    an operator adds a user ─▶ a link with a token ─▶ the user chooses a password and logs in

The token is Django's: it is good until the password is set, for ``PASSWORD_RESET_TIMEOUT``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import AbstractUser, User
from django.contrib.auth.tokens import default_token_generator
from django.contrib.auth.views import PasswordChangeView, PasswordResetConfirmView
from django.db import transaction
from django.http import HttpResponse
from django.urls import reverse, reverse_lazy
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from unfold.widgets import UnfoldAdminPasswordWidget

from helexa_site.pages import shell_of
from metering.actor import user_actor
from metering.services.audit import CHANGED_FIELDS, audit_entry_create

if TYPE_CHECKING:
    from django.contrib.auth.forms import PasswordChangeForm

    FirstForm = SetPasswordForm[User]
else:
    from unfold.forms import AdminOwnPasswordChangeForm as PasswordChangeForm

    FirstForm = SetPasswordForm

S_PER_DAY = 86_400


class FirstPasswordForm(FirstForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"})


class ChangePassword(PasswordChangeView):
    template_name = "pages/password.html"
    form_class = PasswordChangeForm
    success_url = reverse_lazy("front")
    title = "Change password"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**shell_of(self.request), **super().get_context_data(**kwargs)}

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your password is changed")
        with transaction.atomic():
            _audit(form.user)
            return super().form_valid(form)


class FirstPassword(PasswordResetConfirmView):
    template_name = "pages/password.html"
    form_class = FirstPasswordForm
    success_url = reverse_lazy("front")
    post_reset_login = True
    post_reset_login_backend = "django.contrib.auth.backends.ModelBackend"
    title = "Choose your password"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = {**shell_of(self.request), **super().get_context_data(**kwargs)}
        days = settings.PASSWORD_RESET_TIMEOUT // S_PER_DAY
        return {**context, "title": self.title, "days": days}

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            _audit(form.user)
            return super().form_valid(form)


def invitation_path(user: User) -> str:
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("first-password", args=[uid, default_token_generator.make_token(user)])


def _audit(user: AbstractUser) -> None:
    audit_entry_create(
        actor=user_actor(user.get_username()),
        action="user.update",
        object_id=user.get_username(),
        detail={CHANGED_FIELDS: ["password"]},
    )
