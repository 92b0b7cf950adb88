"""The navigation of every page, by its reader's permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.urls import reverse

if TYPE_CHECKING:
    from django.http import HttpRequest
    from unfold.dataclasses import SearchResult


@dataclass(frozen=True, slots=True)
class Item:
    """``permission`` is needed to see it; empty: any login will do. ``also``: it is current at
    pages whose names begin like that, too."""

    title: str
    icon: str
    url_name: str
    permission: str = ""
    also: str = ""
    for_staff: bool = False
    for_superusers: bool = False


def _rows(title: str, icon: str, app_and_model: str) -> Item:
    app, _, model = app_and_model.partition("_")
    name = f"admin:{app_and_model}_"
    return Item(title, icon, f"{name}changelist", f"{app}.view_{model}", also=name)


GROUPS: tuple[tuple[str, tuple[Item, ...]], ...] = (
    (
        "",
        (
            Item("Dashboard", "dashboard", "admin:index", for_staff=True),
            Item("Playground", "chat", "playground"),
            Item("Requests", "list_alt", "requests", also="request"),
            Item("Usage", "bar_chart", "usage"),
            Item("My keys", "key", "usage-keys", also="usage-key"),
        ),
    ),
    (
        "Models",
        (
            _rows("Catalogue", "menu_book", "fleet_cataloguemodel"),
            _rows("Aliases", "label", "fleet_alias"),
            _rows("Load jobs", "downloading", "fleet_loadjob"),
            _rows("Downloads", "cloud_download", "fleet_download"),
            _rows("Replicas", "deployed_code", "fleet_replica"),
        ),
    ),
    (
        "Fleet",
        (
            _rows("Neurons", "dns", "fleet_neuron"),
            _rows("Devices", "memory", "fleet_device"),
            _rows("Upstreams", "cloud", "fleet_upstream"),
            _rows("Invitations", "mail", "fleet_invitation"),
            _rows("Policy", "policy", "fleet_fleetpolicy"),
        ),
    ),
    (
        "Bench",
        (
            Item("Results", "speed", "bench-results", for_staff=True, also="bench-"),
            _rows("Targets", "target", "bench_benchtarget"),
            _rows("Sweep", "tune", "bench_sweepplan"),
        ),
    ),
    (
        "People",
        (
            _rows("Accounts", "account_balance_wallet", "metering_account"),
            _rows("API keys", "vpn_key", "metering_apikey"),
            _rows("Budgets", "savings", "metering_budget"),
            _rows("Users", "person", "auth_user"),
            _rows("Groups", "group", "auth_group"),
            Item("Spending", "payments", "usage-accounts", for_staff=True),
        ),
    ),
    (
        "System",
        (
            _rows("Ledger", "receipt_long", "metering_ledgerentry"),
            _rows("Hours of usage", "schedule", "metering_usagehour"),
            Item("Audit", "history", "usage-audit", "metering.view_auditentry", for_staff=True),
            Item("Settings", "settings", "settings", for_superusers=True),
            Item("API reference", "api", "api-reference", also="api-docs"),
        ),
    ),
)


SEARCHED = (
    *("fleet.cataloguemodel", "fleet.alias", "fleet.neuron", "fleet.upstream"),
    *("metering.account", "metering.apikey", "auth.user", "bench.benchtarget"),
)
"""The rows that the search of every page finds by name, beside the lists of the admin."""
REQUEST_ID_PREFIX = re.compile("[0-9a-f]{8,32}")


def searched_models(request: HttpRequest) -> list[str]:
    names = (label.split(".") for label in SEARCHED)
    return [f"{app}.{one}" for app, one in names if request.user.has_perm(f"{app}.view_{one}")]


def searched_pages(request: HttpRequest, words: str) -> list[SearchResult]:
    """Results of the search beside rows: the request with this id, and pages that are no lists of
    the admin, which it finds by itself."""
    from unfold.dataclasses import SearchResult  # every process reads the settings, few have pages

    found = []
    if REQUEST_ID_PREFIX.fullmatch(words):
        link = f"{reverse('requests')}?{urlencode({'id': words})}"
        found.append(SearchResult("Requests", f"Id begins with {words}", link, "list_alt"))
    for group in navigation_of(request):
        for item in group["items"]:
            if words in item["title"].lower() and not item["is_list"]:
                found.append(
                    SearchResult(item["title"], group["title"], item["link"], item["icon"])
                )
    return found


def navigation_of(request: HttpRequest) -> list[dict[str, Any]]:
    match = request.resolver_match
    here = "" if match is None else match.view_name
    groups = ((title, list(_items(items, request.user, here))) for title, items in GROUPS)
    return [{"title": title, "items": items} for title, items in groups if items]


def _items(items: tuple[Item, ...], user: Any, here: str) -> Iterator[dict[str, Any]]:
    for item in items:
        if _may_see(item, user):
            is_current = here == item.url_name or bool(item.also and here.startswith(item.also))
            yield {
                "title": item.title,
                "icon": item.icon,
                "link": reverse(item.url_name),
                "active": is_current,
                "has_permission": True,
                "is_list": item.url_name.endswith("changelist"),
            }


def _may_see(item: Item, user: Any) -> bool:
    if item.for_superusers:
        return bool(user.is_superuser)
    if (item.for_staff or item.url_name.startswith("admin:")) and not user.is_staff:
        return False
    return not item.permission or bool(user.has_perm(item.permission))
