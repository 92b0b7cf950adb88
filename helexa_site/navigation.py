"""The navigation of every page, by its reader's permissions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.urls import reverse

if TYPE_CHECKING:
    from django.http import HttpRequest
    from unfold.dataclasses import SearchResult

STAFF, SUPERUSERS = "staff", "superusers"


@dataclass(frozen=True, slots=True)
class Item:
    """``needs``: ``STAFF``, ``SUPERUSERS``, or a permission beside being staff; empty: any login
    will do. ``also``: it is current at pages whose names begin like that, too."""

    title: str
    icon: str
    url_name: str
    needs: str = ""
    also: str = ""

    def is_for(self, user: Any) -> bool:
        if self.needs == SUPERUSERS:
            return bool(user.is_superuser)
        has_permission = self.needs in ("", STAFF) or user.has_perm(self.needs)
        return has_permission and (not self.needs or bool(user.is_staff))


def _rows(title: str, icon: str, app_and_model: str) -> Item:
    app, _, model = app_and_model.partition("_")
    name = f"admin:{app_and_model}_"
    return Item(title, icon, f"{name}changelist", f"{app}.view_{model}", also=name)


GROUPS: dict[str, tuple[Item, ...]] = {
    "": (
        Item("Dashboard", "dashboard", "admin:index", STAFF),
        Item("Playground", "chat", "playground"),
        Item("Requests", "list_alt", "requests", also="request"),
        Item("Usage", "bar_chart", "usage"),
        Item("My keys", "key", "usage-keys", also="usage-key"),
    ),
    "Models": (
        _rows("Catalogue", "menu_book", "fleet_cataloguemodel"),
        _rows("Aliases", "label", "fleet_alias"),
        _rows("Load jobs", "downloading", "fleet_loadjob"),
        _rows("Downloads", "cloud_download", "fleet_download"),
        _rows("Replicas", "deployed_code", "fleet_replica"),
    ),
    "Fleet": (
        _rows("Neurons", "dns", "fleet_neuron"),
        _rows("Devices", "memory", "fleet_device"),
        _rows("Upstreams", "cloud", "fleet_upstream"),
        _rows("Invitations", "mail", "fleet_invitation"),
        _rows("Policy", "policy", "fleet_fleetpolicy"),
    ),
    "Bench": (
        Item("Results", "speed", "bench-results", STAFF, also="bench-"),
        _rows("Targets", "target", "bench_benchtarget"),
        _rows("Sweep", "tune", "bench_sweepplan"),
    ),
    "People": (
        _rows("Accounts", "account_balance_wallet", "metering_account"),
        _rows("API keys", "vpn_key", "metering_apikey"),
        _rows("Budgets", "savings", "metering_budget"),
        _rows("Users", "person", "auth_user"),
        _rows("Groups", "group", "auth_group"),
        Item("Spending", "payments", "usage-accounts", STAFF),
    ),
    "System": (
        _rows("Ledger", "receipt_long", "metering_ledgerentry"),
        _rows("Hours of usage", "schedule", "metering_usagehour"),
        Item("Audit", "history", "usage-audit", "metering.view_auditentry"),
        Item("Settings", "settings", "settings", SUPERUSERS),
        Item("API reference", "api", "api-reference", also="api-docs"),
    ),
}


SEARCHED = (
    *("fleet.cataloguemodel", "fleet.alias", "fleet.neuron", "fleet.upstream"),
    *("metering.account", "metering.apikey", "auth.user", "bench.benchtarget"),
)
REQUEST_ID_PREFIX = re.compile("[0-9a-f]{8,32}")


def searched_models(request: HttpRequest) -> list[str]:
    names = (label.split(".") for label in SEARCHED)
    return [f"{app}.{one}" for app, one in names if request.user.has_perm(f"{app}.view_{one}")]


def searched_pages(request: HttpRequest, words: str) -> list[SearchResult]:
    from unfold.dataclasses import SearchResult  # every process reads the settings, few have pages

    found = [
        SearchResult(item["title"], group["title"], item["link"], item["icon"])
        for group in navigation_of(request)
        for item in group["items"]
        if words in item["title"].lower() and not item["is_list"]
    ]
    if REQUEST_ID_PREFIX.fullmatch(words):
        link = f"{reverse('requests')}?{urlencode({'id': words})}"
        found.insert(0, SearchResult("Requests", f"Id begins with {words}", link, "list_alt"))
    return found


def navigation_of(request: HttpRequest) -> list[dict[str, Any]]:
    match = request.resolver_match
    here = "" if match is None else match.view_name
    groups = []
    for title, items in GROUPS.items():
        shown = [
            {
                "title": item.title,
                "icon": item.icon,
                "link": reverse(item.url_name),
                "active": here == item.url_name or bool(item.also and here.startswith(item.also)),
                "has_permission": True,
                "is_list": item.url_name.endswith("changelist"),
            }
            for item in items
            if item.is_for(request.user)
        ]
        if shown:
            groups.append({"title": title, "items": shown})
    return groups
