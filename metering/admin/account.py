"""Accounts: lists, and each with its people and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, UnfoldAdmin, display
from metering import services
from metering.actor import Actor
from metering.admin.account_page import page_of_account
from metering.admin.budget import BudgetInline, budgets_save, caps_left_words
from metering.admin.forms import AccountForm
from metering.models import Account, Budget, Membership
from metering.principal import BUILT_IN_ACCOUNTS, LIMIT_FIELDS

if TYPE_CHECKING:
    TabularInline = admin.TabularInline[Any, Any]
else:
    from unfold.admin import TabularInline


class MembershipInline(TabularInline):
    model = Membership
    extra = 0
    fields = ("user", "role")
    verbose_name_plural = "people"


@admin.register(Account)
class AccountAdmin(UnfoldAdmin):
    form = AccountForm
    change_form_outer_before_template = "metering/account_page.html"
    list_display = (
        "name",
        "description",
        "enabled",
        "weight",
        "num_keys",
        "num_people",
        "caps_left",
    )
    list_filter = ("enabled",)
    search_fields = ("name", "description")
    fieldsets = (
        (None, {"fields": ("name", "description", "enabled", "weight")}),
        ("Limits", {"fields": LIMIT_FIELDS}),
        ("Requests", {"fields": ("capture_until",)}),
    )
    inlines = (MembershipInline, BudgetInline)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        counts = {
            "keys_count": Count("keys", distinct=True),
            "people_count": Count("memberships", distinct=True),
        }
        rows: QuerySet[Any] = super().get_queryset(request).annotate(**counts)
        return rows.prefetch_related("budgets")

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """An account's page is its home: above its settings stands everything else of it."""
        account = self.get_object(request, unquote(object_id))
        context = {} if account is None else page_of_account(account)
        return super().change_view(request, object_id, form_url, context | (extra_context or {}))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The ledger knows an account by its name, so it stays."""
        return ("name",) if obj is not None else ()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """One at a time, and only where nothing hangs on it; others can be disabled."""
        if obj is not None and (obj.name in BUILT_IN_ACCOUNTS or obj.keys.exists()):
            return False
        return super().has_delete_permission(request, obj)

    def get_actions(self, request: HttpRequest) -> Any:
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            services.account_update(
                actor=actor_of(request), account=obj, changed_fields=form.changed_data
            )
            return
        obj.created_at = services.account_create(
            actor=actor_of(request), **form.cleaned_data
        ).created_at

    def save_formset(self, request: HttpRequest, form: AnyForm, formset: Any, change: bool) -> None:
        if formset.model is Budget:
            budgets_save(actor_of(request), formset)
        else:
            memberships_save(actor_of(request), formset)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.account_delete(actor=actor_of(request), account=obj)

    @display(description="Left of its caps")
    def caps_left(self, account: Account) -> str:
        return caps_left_words(account.budgets.all())

    @display(description="Keys", ordering="keys_count")
    def num_keys(self, account: Any) -> int:
        return int(account.keys_count)

    @display(description="People", ordering="people_count")
    def num_people(self, account: Any) -> int:
        return int(account.people_count)


def memberships_save(actor: Actor, formset: Any) -> None:
    """A row whose person was changed is one person who leaves and one who comes."""
    formset.save(commit=False)
    for membership in formset.deleted_objects:
        services.membership_remove(actor=actor, membership=membership)
    for membership, changed in formset.changed_objects:
        if "user" in changed:
            before = Membership.objects.get(pk=membership.pk)
            services.membership_remove(actor=actor, membership=before)
    for membership in [*(row for row, _ in formset.changed_objects), *formset.new_objects]:
        services.membership_set(
            actor=actor,
            account=membership.account,
            user=membership.user,
            role=membership.role,
        )
