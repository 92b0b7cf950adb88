"""People who log in: their page for operators, and their passwords. An operator adds a user and
passes on a link under ``/welcome/``, at which the user sets the first password. Its token is
Django's: it is good until the password is set, for ``PASSWORD_RESET_TIMEOUT``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import AbstractUser, Group, User
from django.contrib.auth.tokens import default_token_generator
from django.contrib.auth.views import PasswordChangeView, PasswordResetConfirmView
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse, reverse_lazy
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from unfold.forms import AdminPasswordChangeForm, UserChangeForm
from unfold.widgets import UnfoldAdminPasswordWidget

from fleet.admin import unfold_types as ui
from fleet.admin.unfold_types import actor_of
from helexa_site.pages import shell_of
from metering import services
from metering.admin.inlines import AccountInline, save_inline
from metering.audit import CHANGED_FIELDS, Actor, audit_entry_create, changes_of, user_actor
from metering.models import Membership

if TYPE_CHECKING:
    from django.contrib.auth.forms import PasswordChangeForm

    FirstForm = SetPasswordForm[User]
else:
    from unfold.forms import AdminOwnPasswordChangeForm as PasswordChangeForm

    FirstForm = SetPasswordForm

USER_FIELDS = ("username", "first_name", "last_name", "email")
AUDITED = (*USER_FIELDS, "is_active", "is_staff", "is_superuser")
S_PER_DAY = 86_400

admin.site.unregister([User, Group])


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ui.UnfoldAdmin):  # type: ignore[type-arg]
    form = UserChangeForm
    add_form = forms.ModelForm
    """Without a password: who is added chooses it."""
    add_fieldsets = ((None, {"fields": USER_FIELDS}),)
    inlines = (AccountInline,)
    change_password_form = AdminPasswordChangeForm
    actions = ("invite_again",)
    save_formset = save_inline

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        if IS_POPUP_VAR in request.POST:
            return super().response_add(request, obj, post_url_continue)
        return self._invitations(request, [obj])

    @admin.action(description="Invite again: a link that sets the password", permissions=["change"])
    @ui.asking_first
    def invite_again(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        users = list(queryset.filter(is_active=True))
        for user in users:
            _audit(actor_of(request), "user.invite", user)
        return self._invitations(request, users)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def save_model(self, request: HttpRequest, obj: Any, form: ui.AnyForm, change: bool) -> None:
        if change:
            obj.audited_changes = changes_of(User.objects.get(pk=obj.pk), obj, AUDITED)
        else:
            obj.set_unusable_password()
        super().save_model(request, obj, form, change)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        _audit(actor_of(request), "user.create", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        entry = super().log_change(request, obj, message)
        if message:
            words = {CHANGED_FIELDS: [entry.get_change_message()]}
            _audit(
                actor_of(request),
                "user.update",
                obj,
                {**getattr(obj, "audited_changes", {}), **words},
            )
        return entry

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        for user in queryset:
            for membership in Membership.objects.filter(user=user):
                services.membership_remove(actor=actor_of(request), membership=membership)
            _audit(actor_of(request), "user.delete", user)
        return super().log_deletions(request, queryset)

    def _invitations(self, request: HttpRequest, users: list[User]) -> HttpResponse:
        links = [(user, request.build_absolute_uri(_invitation_path(user))) for user in users]
        days = settings.PASSWORD_RESET_TIMEOUT // S_PER_DAY
        return ui.show_once(
            self, request, "metering/user_invited.html", "An invitation", invited=links, days=days
        )


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ui.UnfoldAdmin):
    pass


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
            _audit_password(form.user)
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
            _audit_password(form.user)
            return super().form_valid(form)


def _invitation_path(user: User) -> str:
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("first-password", args=[uid, default_token_generator.make_token(user)])


def _audit(
    actor: Actor, action: str, user: AbstractUser, detail: dict[str, Any] | None = None
) -> None:
    with transaction.atomic():
        audit_entry_create(actor=actor, action=action, object_id=user.get_username(), detail=detail)


def _audit_password(user: AbstractUser) -> None:
    actor = user_actor(user.get_username())
    _audit(actor, "user.update", user, {CHANGED_FIELDS: ["password"]})
