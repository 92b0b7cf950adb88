"""Upstreams: a form whose key is written and never shown, and the test."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminPasswordWidget

from fleet import services
from fleet.admin.loading import actor_of
from fleet.admin.unfold_types import AnyForm, CheckedForm, UnfoldAdmin, action, display
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.errors import FleetError, UpstreamValueError
from fleet.models import Upstream
from fleet.services.offers.upstreams import CHANGEABLE
from fleet.upstreams.probe import Probed
from fleet.upstreams.rules import check_secret, origin
from metering.links import requests_url

KEY_FIELDS = ("key", "removes_key")
WORDS = {True: "works", False: "does not work", None: "not tested"}


class UpstreamForm(CheckedForm):
    key = forms.CharField(
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Stored encrypted and never shown. Empty: the one that it has.",
    )
    removes_key = forms.BooleanField(required=False, label="Remove its key")

    class Meta:
        model = Upstream
        fields = ("name", *CHANGEABLE)

    def check_row(self) -> None:
        services.upstream_check(upstream=self.instance)
        check_secret(self.cleaned_data["key"])
        before = self.initial.get("url")
        is_elsewhere = before is not None and origin(before) != origin(self.instance.url)
        if is_elsewhere and self.instance.has_key and self.key_given is None:
            raise UpstreamValueError(
                "key", "A URL of another host, port or scheme needs the key again"
            )

    @property
    def key_given(self) -> str | None:
        """``None``: the row keeps its key."""
        if self.cleaned_data["removes_key"]:
            return ""
        return self.cleaned_data["key"] or None


@admin.register(Upstream)
class UpstreamAdmin(UnfoldAdmin):
    form = UpstreamForm
    list_display = ("name", "url", "dialect", "key_label", "leaves_network", "model_count")
    list_filter = ("dialect", "leaves_network")
    search_fields = ("name", "url")
    actions = ("test_selected",)
    fieldsets = (
        (None, {"fields": ("name", "url", "dialect", *KEY_FIELDS, "leaves_network")}),
        (
            "Limits",
            {
                "fields": (
                    *("concurrency", "connect_timeout_s"),
                    *("first_token_timeout_s", "token_timeout_s"),
                )
            },
        ),
        ("Network", {"fields": ("proxy", "ca_file")}),
    )
    recorded = ("Recorded", {"fields": ("key_label", "model_names", "discovered_at", "requests")})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if obj is None else (*self.fieldsets, self.recorded)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """The name is fixed: models refer to it."""
        shown = ("key_label", "model_names", "discovered_at", "requests")
        return shown if obj is None else ("name", *shown)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("fleet.change_upstream")

    def save_model(self, request: HttpRequest, obj: Any, form: AnyForm, change: bool) -> None:
        assert isinstance(form, UpstreamForm), "another form than the page's"
        if change:
            changed = [name for name in form.changed_data if name not in KEY_FIELDS]
            services.upstream_update(
                actor=actor_of(request), upstream=obj, changed_fields=changed, key=form.key_given
            )
            return
        values = {name: form.cleaned_data[name] for name in ("name", *CHANGEABLE)}
        key = form.key_given or ""
        obj.pk = services.upstream_create(actor=actor_of(request), key=key, **values).pk

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.upstream_delete(actor=actor_of(request), upstream=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for upstream in queryset:
            self.delete_model(request, upstream)

    @display(description="Key")
    def key_label(self, upstream: Upstream) -> str:
        return "set" if upstream.has_key else "none"

    @display(description="Models")
    def model_count(self, upstream: Upstream) -> str:
        return str(len(upstream.known_models)) if upstream.discovered_at else "not tested yet"

    @display(description="Models")
    def model_names(self, upstream: Upstream) -> str:
        return ", ".join(str(model["id"]) for model in upstream.known_models)

    @display(description="Requests")
    def requests(self, upstream: Upstream) -> SafeString:
        url = requests_url(neuron=f"{UPSTREAM_PREFIX}{upstream.name}")
        return format_html('<a href="{}">Requests</a>', url)

    @action(description="Test", permissions=["operate"])
    def test_selected(self, request: HttpRequest, queryset: QuerySet[Upstream]) -> None:
        for upstream in queryset:
            try:
                probed = services.upstream_test(actor=actor_of(request), upstream=upstream)
            except FleetError as error:
                messages.error(request, f"{upstream.name}: {error}")
                continue
            works = any(probe.works for probe in probed.probes)
            level = messages.SUCCESS if works else messages.ERROR
            messages.add_message(request, level, f"{upstream.name}: {_words(probed)}")


def _words(probed: Probed) -> str:
    return "; ".join(
        f"{probe.what} {WORDS[probe.works]}" + (f" ({probe.detail})" if probe.detail else "")
        for probe in probed.probes
    )
