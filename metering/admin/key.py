"""API keys: made, shown once, limited and revoked; never deleted and never read again."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelect2MultipleWidget,
)

from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import (
    AnyForm,
    CheckedForm,
    UnfoldAdmin,
    action,
    asking_first,
    display,
    linked_column,
    linked_list,
)
from fleet.dashboard.links import model_url
from fleet.selectors import nameable_models
from helexa_site.web.pages import SHOWN_ONCE, render_page
from metering import services
from metering.admin.budget import BudgetInline, budgets_save, caps_left_words
from metering.keys.store import key_status
from metering.links import account_url
from metering.models import ApiKey, Budget
from metering.principal import LIMIT_FIELDS, RateLimits, Scope

STATUS_LABELS = {
    "active": "success",
    "expired": "warning",
    "disabled": "warning",
    "revoked": "danger",
}
RECORDED = ("prefix", "created_at", "created_by", "last_used_at", "revoked_at")


class ApiKeyForm(CheckedForm):
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

    class Meta:
        model = ApiKey
        fields = (
            "account",
            "name",
            "scopes",
            "model_names",
            "names_end_user",
            "may_leave_network",
            "expires_at",
            "capture_until",
            *LIMIT_FIELDS,
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """A key keeps models that have left the catalogue until an admin removes them."""
        super().__init__(*args, **kwargs)
        names = sorted({*nameable_models(), *self.instance.model_names})
        self.fields["model_names"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]

    def check_row(self) -> None:
        services.key_check(key=self.instance)


@admin.register(ApiKey)
class ApiKeyAdmin(UnfoldAdmin):
    form = ApiKeyForm
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
    fieldsets = (
        (None, {"fields": ("account", "name", "scopes", "model_names", "expires_at")}),
        ("Requests", {"fields": ("names_end_user", "may_leave_network", "capture_until")}),
        ("Limits", {"fields": LIMIT_FIELDS}),
    )
    recorded = ("Recorded", {"fields": RECORDED})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj is None else (*self.fieldsets, self.recorded)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The account is fixed: the ledger bills by it."""
        return RECORDED if obj is None else ("account", *RECORDED)

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        return [] if obj is None else [BudgetInline]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is not None and obj.revoked_at is not None:
            return False
        return super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("metering.change_apikey")

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        if change:
            services.key_update(actor=actor_of(request), key=obj, changed_fields=form.changed_data)
            return
        values = form.cleaned_data
        own = {name: value for name, value in values.items() if name not in LIMIT_FIELDS}
        created = services.key_create(actor=actor_of(request), limits=RateLimits.of(values), **own)
        obj.pk = created.row.pk
        obj.shown_once = created.key

    def save_formset(self, request: HttpRequest, form: AnyForm, formset: Any, change: bool) -> None:
        if formset.model is Budget:
            budgets_save(actor_of(request), formset)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """The page with the key, which is stored nowhere: not in the session, a cache or the
        history."""
        return render_page(
            request,
            "metering/key_created.html",
            title="A new API key",
            context={"opts": self.opts, "key": obj, "shown_once": obj.shown_once},
            headers=SHOWN_ONCE,
        )

    account_link = linked_column("account_id", account_url, "Account")

    @display(description="Status", label=STATUS_LABELS)
    def status_label(self, key: ApiKey) -> str:
        return key_status(key)

    @display(description="Scopes")
    def scope_names(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).prefetch_related("budgets")
        return rows

    @display(description="Left of its caps")
    def caps_left(self, key: ApiKey) -> str:
        return caps_left_words(key.budgets.all())

    @display(description="Models")
    def model_list(self, key: ApiKey) -> SafeString | str:
        return linked_list(((name, "") for name in key.model_names), model_url) or "all"

    @action(description="Revoke, for good", permissions=["revoke"])
    @asking_first
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            if services.key_revoke(actor=actor_of(request), key=key):
                messages.success(request, f"Revoked {key}")
            else:
                messages.info(request, f"{key} was revoked already")
