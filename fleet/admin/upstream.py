"""Upstreams: a form whose key is written and never shown, and the test."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminPasswordWidget

from fleet import selectors, services
from fleet.admin import unfold_types as ui
from fleet.admin.loading import Outcome
from fleet.catalogue.targets import UPSTREAM_PREFIX
from fleet.errors import FleetError
from fleet.models import Upstream
from fleet.services.offers.upstreams import CHANGEABLE
from fleet.upstreams.rules import check_secret
from metering.audit import Actor
from metering.pages import requests_url

KEY_FIELDS = ("key", "removes_key")
LIMITS = ("concurrency", "connect_timeout_s", "first_token_timeout_s", "token_timeout_s")
WORDS = {True: "works", False: "does not work", None: "not tested"}


class UpstreamForm(ui.CheckedForm):
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

    @property
    def key_given(self) -> str | None:
        """``None``: the row keeps its key."""
        if self.cleaned_data["removes_key"]:
            return ""
        return self.cleaned_data["key"] or None


def _test(actor: Actor, upstream: Upstream) -> Outcome:
    try:
        probed = services.upstream_test(actor=actor, upstream=upstream)
    except FleetError as error:
        return Outcome(messages.ERROR, f"{upstream.name}: {error}")
    works = any(probe.works for probe in probed.probes)
    words = "; ".join(
        f"{probe.what} {WORDS[probe.works]}" + (f" ({probe.detail})" if probe.detail else "")
        for probe in probed.probes
    )
    return Outcome(messages.SUCCESS if works else messages.ERROR, f"{upstream.name}: {words}")


def _model_count(upstream: Upstream) -> str:
    return str(len(upstream.known_models)) if upstream.discovered_at else "not tested yet"


def _requests(upstream: Upstream) -> SafeString | str:
    name = f"{UPSTREAM_PREFIX}{upstream.name}"
    return ui.linked(name, lambda neuron: requests_url(neuron=neuron), "Requests")


@admin.register(Upstream)
class UpstreamAdmin(ui.WrittenAdmin):
    operating = "fleet.change_upstream"
    form = UpstreamForm
    writes = ui.Writes(
        "upstream", services.upstream_create, services.upstream_update, services.upstream_delete
    )
    list_display = ("name", "url", "dialect", "key_label", "leaves_network", "model_count")
    list_filter = ("dialect", "leaves_network")
    search_fields = ("name", "url")
    actions = ("test_selected",)
    fieldsets = ui.sections(
        {
            "": ("name", "url", "dialect", *KEY_FIELDS, "leaves_network"),
            "Limits": LIMITS,
            "Network": ("proxy", "ca_file"),
        }
    )
    fixed = ("name",)
    recorded = ("key_label", "model_names", "discovered_at", "requests")

    key_label = ui.column("Key", lambda upstream: "set" if upstream.has_key else "none")
    model_count = ui.column("Models", _model_count)
    model_names = ui.column(
        "Models", lambda upstream: ", ".join(str(model["id"]) for model in upstream.known_models)
    )
    requests = ui.column("Requests", _requests)
    test_selected = ui.each_row("Test", _test)

    def created(self, actor: Actor, form: Any) -> Upstream:
        values = {name: form.cleaned_data[name] for name in ("name", *CHANGEABLE)}
        return services.upstream_create(actor=actor, key=form.key_given or "", **values)

    def updated(self, actor: Actor, row: Upstream, form: Any) -> None:
        changed = [name for name in form.changed_data if name not in KEY_FIELDS]
        services.upstream_update(
            actor=actor, upstream=row, changed_fields=changed, key=form.key_given
        )

    def users_of(self, rows: Any) -> list[str]:
        return [
            f"{upstream.name}, which serves {model.name}"
            for upstream in rows
            for model in selectors.models_of_upstream(upstream.name)
        ]
