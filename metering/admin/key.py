"""API keys: made, shown once, limited and revoked; never deleted and never read again."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminSelect2MultipleWidget

from fleet.admin import unfold_types as ui
from fleet.admin.loading import Outcome
from fleet.dashboard.links import model_url
from fleet.selectors import nameable_models
from metering import services
from metering.admin.inlines import BudgetInline, caps_left, save_inline
from metering.audit import Actor
from metering.links import account_url
from metering.models import ApiKey
from metering.principal import LIMIT_FIELDS, RateLimits, Scope
from metering.selectors import key_status


class ApiKeyForm(ui.CheckedForm):
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, scope.value) for scope in Scope],
        initial=[scope.value for scope in services.DEFAULT_SCOPES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )
    model_names = forms.MultipleChoiceField(
        required=False,
        label="Models",
        widget=UnfoldAdminSelect2MultipleWidget,
        help_text="What it may use; none means all.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """A key keeps models that have left the catalogue until an admin removes them."""
        super().__init__(*args, **kwargs)
        names = sorted({*nameable_models(), *self.instance.model_names})
        self.fields["model_names"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]

    def check_row(self) -> None:
        services.key_check(key=self.instance)


def _revoke(actor: Actor, key: ApiKey) -> Outcome:
    if services.key_revoke(actor=actor, key=key):
        return Outcome(messages.SUCCESS, f"Revoked {key}")
    return Outcome(messages.INFO, f"{key} was revoked already")


@admin.register(ApiKey)
class ApiKeyAdmin(ui.WrittenAdmin):
    operating = "metering.change_apikey"
    form = ApiKeyForm
    writes = ui.Writes("key", services.key_create, services.key_update, services.key_revoke)
    fixed = ("account",)
    recorded = ("prefix", "created_at", "created_by", "last_used_at", "revoked_at")
    list_display = (
        "prefix",
        "name",
        "account_link",
        "status_label",
        "scope_names",
        "model_list",
        "caps_left",
        "expires_at",
        "last_used_at",
    )
    list_select_related = ("account",)
    list_filter = ("account", ("revoked_at", admin.EmptyFieldListFilter))
    search_fields = ("prefix", "name", "account__name")
    actions = ("revoke_selected",)
    fieldsets = ui.sections(
        {
            "": ("account", "name", "scopes", "model_names", "expires_at"),
            "Requests": ("names_end_user", "may_leave_network", "capture_until"),
            "Limits": LIMIT_FIELDS,
        }
    )

    account_link = ui.linked_column("account_id", account_url, "Account")
    status_label = ui.column("Status", key_status, label=ui.STATUS_LABELS)
    scope_names = ui.column("Scopes", lambda key: ", ".join(key.scopes))
    model_list = ui.column(
        "Models",
        lambda key: ui.linked_list(((name, "") for name in key.model_names), model_url) or "all",
    )
    caps_left = ui.column("Left of its caps", caps_left)
    revoke_selected = ui.each_row("Revoke, for good", _revoke, asks=True)
    save_formset = save_inline

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).prefetch_related("budgets")
        return rows

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        return [] if obj is None else [BudgetInline]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_over = obj is not None and obj.revoked_at is not None
        return not is_over and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def created(self, actor: Actor, form: ui.AnyForm) -> ApiKey:
        given = dict(form.cleaned_data)
        limits = RateLimits.of({name: given.pop(name) for name in LIMIT_FIELDS})
        created = services.key_create(actor=actor, limits=limits, **given)
        vars(created.row)["shown_once"] = created.key
        return created.row

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return ui.show_once(
            self,
            request,
            "metering/key_created.html",
            "A new API key",
            key=obj,
            shown_once=obj.shown_once,
        )
