"""People who log in: their passwords, rights and accounts.

The admin's own forms, in unfold's looks; entries of its history go into the audit as well.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm

from fleet.admin import unfold_types as ui
from fleet.admin.unfold_types import actor_of
from metering import services
from metering.admin.inlines import AccountInline, save_inline
from metering.models import Membership
from metering.people import S_PER_DAY, invitation_path
from metering.services.audit import CHANGED_FIELDS, audit_entry_create, changes_of

USER_FIELDS = ("username", "first_name", "last_name", "email")
AUDITED = (*USER_FIELDS, "is_active", "is_staff", "is_superuser")


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
            _audit(request, "user.invite", user)
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
        _audit(request, "user.create", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Fields outside ``AUDITED`` are named as in the history, without their values."""
        entry = super().log_change(request, obj, message)
        if message:
            words = {CHANGED_FIELDS: [entry.get_change_message()]}
            _audit(request, "user.update", obj, {**getattr(obj, "audited_changes", {}), **words})
        return entry

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        for user in queryset:
            for membership in Membership.objects.filter(user=user):
                services.membership_remove(actor=actor_of(request), membership=membership)
            _audit(request, "user.delete", user)
        return super().log_deletions(request, queryset)

    def _invitations(self, request: HttpRequest, users: list[User]) -> HttpResponse:
        links = [(user, request.build_absolute_uri(invitation_path(user))) for user in users]
        days = settings.PASSWORD_RESET_TIMEOUT // S_PER_DAY
        return ui.show_once(
            self, request, "metering/user_invited.html", "An invitation", invited=links, days=days
        )


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ui.UnfoldAdmin):
    pass


def _audit(
    request: HttpRequest, action: str, user: User, detail: dict[str, Any] | None = None
) -> None:
    with transaction.atomic():
        audit_entry_create(
            actor=actor_of(request), action=action, object_id=user.get_username(), detail=detail
        )
