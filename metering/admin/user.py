"""People who log in: their passwords, rights and accounts.

The admin's own forms, in unfold's looks; entries of its history go into the audit as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from unfold.widgets import UnfoldAdminSelectWidget

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, UnfoldAdmin, action, asking_first
from helexa_site.web.pages import SHOWN_ONCE, render_page
from metering import services
from metering.admin.account import memberships_save
from metering.admin.budget import TabularInline
from metering.models import Account, Membership
from metering.people import S_PER_DAY, invitation_path
from metering.principal import BUILT_IN_ACCOUNTS
from metering.services.audit import CHANGED_FIELDS, audit_entry_create, changes_of

if TYPE_CHECKING:
    BaseUserAdmin = DjangoUserAdmin[User]
    UserForm = forms.ModelForm[User]
else:
    BaseUserAdmin = DjangoUserAdmin
    UserForm = forms.ModelForm

USER_FIELDS = ("username", "first_name", "last_name", "email")
MEMBER_FIELDS = (*USER_FIELDS, "account", "role")
ADDS_MEMBERS = "metering.add_membership"


class AccountInline(TabularInline):
    """The account whose budget the person uses in the playground. Without one they see none."""

    model = Membership
    extra = 0
    fields = ("account", "role")
    verbose_name = "account"
    verbose_name_plural = "accounts"


class NewUserForm(UserForm):
    """Adds a user without a password, who chooses it."""

    class Meta:
        model = User
        fields = USER_FIELDS

    def save(self, commit: bool = True) -> Any:
        self.instance.set_unusable_password()
        return super().save(commit)


class NewMemberForm(NewUserForm):
    account = forms.ModelChoiceField(
        queryset=Account.objects.exclude(name__in=BUILT_IN_ACCOUNTS),
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text="Pays for their requests; without one they see no playground.",
    )
    role = forms.ChoiceField(
        choices=Membership.Role.choices,
        initial=Membership.Role.MEMBER,
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text="Owners and members make keys there; viewers see its usage.",
    )


AUDITED = (*USER_FIELDS, "is_active", "is_staff", "is_superuser")
admin.site.unregister([User, Group])


@admin.register(User)
class UserAdmin(BaseUserAdmin, UnfoldAdmin):
    form = UserChangeForm
    add_form = NewUserForm
    change_password_form = AdminPasswordChangeForm
    actions = ("invite_again",)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        if obj is None and request.user.has_perm(ADDS_MEMBERS):
            kwargs.setdefault("form", NewMemberForm)
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None:
            return super().get_fieldsets(request, obj)
        adds_members = request.user.has_perm(ADDS_MEMBERS)
        return ((None, {"fields": MEMBER_FIELDS if adds_members else USER_FIELDS}),)

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        return [] if obj is None else [AccountInline]

    def save_formset(self, request: HttpRequest, form: AnyForm, formset: Any, change: bool) -> None:
        memberships_save(actor_of(request), formset)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        if IS_POPUP_VAR in request.POST:
            return super().response_add(request, obj, post_url_continue)
        return self._invitations(request, [obj])

    @action(description="Invite again: a link that sets the password", permissions=["change"])
    @asking_first
    def invite_again(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        users = list(queryset.filter(is_active=True))
        for user in users:
            self._audit(request, "user.invite", user)
        return self._invitations(request, users)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        before = User.objects.filter(pk=obj.pk).first()
        super().save_model(request, obj, form, change)
        if before is not None:
            obj.audited_changes = changes_of(before, obj, AUDITED)
        elif account := form.cleaned_data.get("account"):
            role = form.cleaned_data["role"] or Membership.Role.MEMBER
            services.membership_set(actor=actor_of(request), account=account, user=obj, role=role)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        self._audit(request, "user.create", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        changes: dict[str, Any] = getattr(obj, "audited_changes", {})
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

    def _invitations(self, request: HttpRequest, users: list[User]) -> HttpResponse:
        """The links are not stored, and a browser's cache has them no longer than the page is
        open."""
        links = [(user, request.build_absolute_uri(invitation_path(user))) for user in users]
        days = settings.PASSWORD_RESET_TIMEOUT // S_PER_DAY
        return render_page(
            request,
            "metering/user_invited.html",
            title="An invitation",
            context={"opts": self.opts, "invited": links, "days": days},
            headers=SHOWN_ONCE,
        )

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
    """Changes in the admin's history that ``AUDITED`` lacks: other fields, without their values,
    and accounts."""
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
    label = User._meta.get_field(name).verbose_name  # type: ignore[union-attr]
    return str(label).capitalize()
