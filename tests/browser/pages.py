"""The pages of the URL table: address, visitors; and the routes that are no page.

The routes are read from Django's own table, so that a page without a row here fails
``test_every_page_has_a_row.py``, and one that is there is opened by ``test_pages.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from django.contrib import admin
from django.db.models import Model
from django.urls import URLPattern, URLResolver, get_resolver

APIS = ("api/",)
"""They have tests of their own, and answer in JSON, but for the page that documents them."""


class Who(StrEnum):
    OPERATOR = "olga"
    MEMBER = "mia"
    STRANGER = ""


OPERATORS = frozenset({Who.OPERATOR})
MEMBERS = frozenset({Who.OPERATOR, Who.MEMBER})
EVERYBODY = frozenset(Who)
MEMBER_ALONE = frozenset({Who.MEMBER})
STRANGERS = frozenset({Who.STRANGER})


@dataclass(frozen=True, slots=True)
class Page:
    """``path`` may hold ``{key}``, the key of the first row of ``model``."""

    path: str
    seen_by: frozenset[Who] = OPERATORS
    model: type[Model] | None = None

    def path_with(self, first_key: Callable[[type[Model]], str]) -> str:
        return self.path if self.model is None else self.path.format(key=first_key(self.model))


PASSWORD = "what-people-type-here"
BENCH = "/bench/"
REQUEST_ID = "5eed" * 8
"""The id of a request that failed."""
ACCOUNT_IN_USE = "/admin/metering/account/research/change/"
"""One with budgets, keys, requests and failures, which the oldest account has none of."""
HUB = "/admin/fleet/cataloguemodel/hub/"
OWN_PAGES: dict[str, list[Page]] = {
    "login": [Page("/login/", STRANGERS)],
    "api-reference": [Page("/docs", EVERYBODY)],
    "api-docs": [Page("/api/docs")],
    "password": [Page("/password/", MEMBERS)],
    "first-password": [Page("/welcome/MQ/no-token/", EVERYBODY)],
    "playground": [Page("/playground/", MEMBERS)],
    "usage": [Page("/usage/", MEMBERS), Page("/usage/?by=model", MEMBERS)],
    "requests": [Page("/requests/", MEMBERS), Page("/requests/?outcome=failed", MEMBERS)],
    "request": [Page(f"/requests/{REQUEST_ID}", MEMBERS)],
    "usage-keys": [Page("/usage/keys", MEMBERS)],
    "usage-accounts": [Page("/usage/accounts")],
    "usage-audit": [Page("/usage/audit")],
    # The bench is open to all here, as an operator may set it.
    "bench-results": [
        Page(BENCH, EVERYBODY),
        Page(f"{BENCH}?model=tiny&scenario=chat:128", EVERYBODY),
        Page(f"{BENCH}?before=beast@b2&after=beast@b3", EVERYBODY),
    ],
    "bench-runs": [Page(f"{BENCH}runs/?ok=false", EVERYBODY)],
    "bench-run": [Page(f"{BENCH}runs/1/", EVERYBODY)],
    "bench-jobs": [Page(f"{BENCH}jobs/")],
    "sharing": [Page("/admin/dashboard/sharing")],
    "settings": [Page("/admin/settings/")],
    "admin:index": [Page("/admin/")],
    "admin:app_list": [Page("/admin/fleet/")],
    "admin:login": [Page("/admin/login/", frozenset({Who.STRANGER, Who.MEMBER}))],
    "admin:password_change": [Page("/admin/password_change/")],
    "admin:password_change_done": [Page("/admin/password_change/done/")],
    "admin:fleet_cataloguemodel_hub": [
        Page(HUB),
        Page(f"{HUB}?words=org"),
        Page(f"{HUB}?repository=org/tiny-gguf"),
    ],
    "admin:fleet_cataloguemodel_import": [Page("/admin/fleet/cataloguemodel/models-toml/")],
    "admin:fleet_download_cached": [Page("/admin/fleet/download/cached/")],
}
NO_PAGES = frozenset(
    (
        # They lead on.
        *("front", "model-page", "neuron-page", "admin:view_on_site"),
        # They take a POST.
        *("logout", "usage-key-revoke", "bench-start", "bench-cancel", "dashboard-do"),
        *("first-key", "first-steps-hide", "admin:logout", "playground-identify"),
        # They are JSON, or files.
        *("version", "playground-conversations", "playground-conversation", "admin:autocomplete"),
        *("favicon.ico", "playground-export", "bench-runs-csv", "admin:jsi18n"),
        "admin:fleet_cataloguemodel_export",
        # They are parts of pages.
        *("playground-markdown", "bench-job", "dashboard-board", "dashboard-outdated"),
        *("dashboard-log", "series-panel", "first-steps", "dashboard-model-home"),
        *("dashboard-neuron-home", "admin:search"),
    )
)
MADE_BY_HAND = frozenset(
    {
        "fleet_cataloguemodel",
        "fleet_alias",
        "fleet_invitation",
        "fleet_upstream",
        "metering_account",
        "metering_apikey",
        "metering_budget",
        "bench_benchtarget",
        "auth_user",
        "auth_group",
    }
)
"""Rows that operators add. All others are reported, derived, or there once."""
HISTORY_OF, DELETION_OF = "fleet_cataloguemodel", "fleet_alias"
"""The one of all that is looked at: these pages are the admin's own."""


def rows() -> dict[str, list[Page]]:
    from metering.models import ApiKey

    found = dict(OWN_PAGES)
    found["usage-key"] = [Page("/usage/keys/{key}", MEMBER_ALONE, ApiKey)]
    assert get_resolver().url_patterns, "they register the admin's models"
    for model in admin.site._registry:
        found |= _pages_of(model)
    found["admin:metering_account_change"].append(Page(ACCOUNT_IN_USE))
    return found


def _pages_of(model: type[Model]) -> dict[str, list[Page]]:
    meta = model._meta
    name = f"{meta.app_label}_{meta.model_name}"
    at = f"/admin/{meta.app_label}/{meta.model_name}/"
    pages = {"changelist": Page(at), "change": Page(f"{at}{{key}}/change/", model=model)}
    if name in MADE_BY_HAND:
        pages["add"] = Page(f"{at}add/")
    if name == HISTORY_OF:
        pages["history"] = Page(f"{at}{{key}}/history/", model=model)
    if name == DELETION_OF:
        pages["delete"] = Page(f"{at}{{key}}/delete/", model=model)
    found = {f"admin:{name}_{verb}": [page] for verb, page in pages.items()}
    if name == "auth_user":
        found["admin:auth_user_password_change"] = [Page(f"{at}{{key}}/password/", model=model)]
    return found


def pages_of(who: Who) -> Iterator[tuple[str, Page]]:
    """The pages this visitor looks at, each with a name for its screenshot."""
    for name, pages in rows().items():
        for number, page in enumerate(pages):
            if who in page.seen_by:
                label = name.replace(":", "-").replace("_", "-")
                yield f"{label}-{number + 1}" if number else label, page


def routes() -> Iterator[str]:
    """Returns the routes of the whole URL table without the APIs: each by its name, or as it is
    written where it has none. Routes to nowhere, and redirects from old addresses, are left out."""
    yield from _routes(get_resolver().url_patterns, "", "")


def _routes(patterns: list[URLPattern | URLResolver], before: str, namespace: str) -> Iterator[str]:
    for one in patterns:
        written = before + str(one.pattern)
        if isinstance(one, URLResolver):
            inner = f"{one.namespace}:" if one.namespace else namespace
            yield from _routes(one.url_patterns, written, inner)
        elif written.startswith(APIS) and one.name not in OWN_PAGES:
            continue
        elif one.name:
            yield namespace + one.name
        elif not _leads_elsewhere(one):
            yield written


def _leads_elsewhere(pattern: URLPattern) -> bool:
    """The admin's own two without a name."""
    return str(pattern.pattern) in ("(?P<url>.*)$", "<path:object_id>/")
