"""People who log in: their passwords, rights and accounts.

The admin's own forms, in unfold's looks; what its history keeps goes into the audit as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, UnfoldAdmin
from metering import services
from metering.admin.account import memberships_save
from metering.models import Membership
from metering.services.audit import CHANGED_FIELDS, audit_entry_create, changes_of

if TYPE_CHECKING:
    TabularInline = admin.TabularInline[Any, Any]
    BaseUserAdmin = DjangoUserAdmin[User]
else:
    from unfold.admin import TabularInline

    BaseUserAdmin = DjangoUserAdmin


class AccountInline(TabularInline):
    """Whose budget the person asks from: without an account they see no playground."""

    model = Membership
    extra = 0
    fields = ("account", "role")
    verbose_name = "account"
    verbose_name_plural = "accounts"


AUDITED = (
    *("username", "first_name", "last_name", "email"),
    *("is_active", "is_staff", "is_superuser"),
)
"""The fields of a user whose old and new values the audit holds."""
admin.site.unregister([User, Group])


@admin.register(User)
class UserAdmin(BaseUserAdmin, UnfoldAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    inlines = (AccountInline,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._changes: WeakKeyDictionary[HttpRequest, dict[str, Any]] = WeakKeyDictionary()
        """Of the users that requests have saved and not logged."""

    def save_formset(self, request: HttpRequest, form: AnyForm, formset: Any, change: bool) -> None:
        memberships_save(actor_of(request), formset)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        before = User.objects.filter(pk=obj.pk).first()
        super().save_model(request, obj, form, change)
        if before is not None:
            self._changes[request] = changes_of(before, obj, AUDITED)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._audit(request, "user.create", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        changes: dict[str, Any] = self._changes.pop(request, {})
        if named := _changed(message):
            changes = {**changes, CHANGED_FIELDS: named}
        if changes:
            self._audit(request, "user.update", obj, changes)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        for user in queryset:
            for membership in Membership.objects.filter(user=user):
                services.membership_remove(actor=actor_of(request), membership=membership)
            self._audit(request, "user.delete", user)
        return super().log_deletions(request, queryset)

    def _audit(
        self, request: HttpRequest, action: str, user: User, detail: dict[str, Any] | None = None
    ) -> None:
        with transaction.atomic():
            audit_entry_create(
                actor=actor_of(request),
                action=action,
                object_id=user.get_username(),
                detail=detail,
            )


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, UnfoldAdmin):
    pass


def _changed(message: Any) -> list[str]:
    """What the admin's history names and ``AUDITED`` does not hold: other fields, without their
    values, and accounts."""
    if not isinstance(message, list):
        return [str(message)] if message else []
    labels = {_label(name) for name in AUDITED}
    named = []
    for part in message:
        for verb, what in part.items():
            fields = [field for field in what.get("fields", []) if field not in labels]
            if "object" in what:
                words = ", ".join(fields)
                named.append(f"{verb} {what['object']}" + (f" ({words})" if words else ""))
            else:
                named += fields
    return named


def _label(name: str) -> str:
    """A field of users as the admin's history names it."""
    label = User._meta.get_field(name).verbose_name  # type: ignore[union-attr]
    return str(label).capitalize()
