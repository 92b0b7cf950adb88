"""The pages of the URL table: address, visitors; and the routes that are no page, with the reason.

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
    """A visitor, by the name that the seed gives."""

    OPERATOR = "olga"
    MEMBER = "mia"
    STRANGER = ""


OPERATORS = frozenset({Who.OPERATOR})
MEMBERS = frozenset({Who.OPERATOR, Who.MEMBER})
EVERYBODY = frozenset(Who)
MEMBER_ALONE = frozenset({Who.MEMBER})
STRANGERS = frozenset({Who.STRANGER})
NOBODY: frozenset[Who] = frozenset()


@dataclass(frozen=True, slots=True)
class Page:
    """``path`` may hold ``{key}``, the key of the first row of ``model``."""

    path: str
    seen_by: frozenset[Who] = OPERATORS
    model: type[Model] | None = None
    is_looked_at: bool = True
    """Else only who is let in is tested: another page is drawn by the same template."""

    def path_with(self, first_key: Callable[[type[Model]], str]) -> str:
        return self.path if self.model is None else self.path.format(key=first_key(self.model))


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
NO_PAGES = {
    "front": "leads on by who asks",
    "logout": "a POST",
    "favicon.ico": "an image",
    "version": "JSON",
    "playground-identify": "a POST that finds who asks, answered without a word",
    "playground-markdown": "a part of an answer",
    "playground-conversations": "JSON for the playground's script",
    "playground-conversation": "JSON for the playground's script",
    "playground-export": "a file",
    "usage-key-revoke": "a POST",
    "bench-runs-csv": "a file",
    "bench-moved": "leads on to the results",
    "bench-start": "a POST",
    "bench-job": "a part of the page of jobs",
    "bench-cancel": "a POST",
    "dashboard-board": "the part of the dashboard that is asked for again",
    "dashboard-outdated": "a part of a model's page",
    "dashboard-log": "a part of a replica's page",
    "series-panel": "the charts of a page",
    "dashboard-do": "a POST of the dashboard's",
    "first-steps": "a card of the dashboard",
    "first-key": "a POST of that card's",
    "first-steps-hide": "a POST of that card's",
    "dashboard-model-home": "a part of a model's page",
    "dashboard-neuron-home": "a part of a neuron's page",
    "model-page": "leads on to a model's page",
    "neuron-page": "leads on to a neuron's page",
    "admin:logout": "a POST",
    "admin:autocomplete": "JSON",
    "admin:jsi18n": "a script",
    "admin:search": "a part of the search field",
    "admin:view_on_site": "leads on",
    "admin:fleet_cataloguemodel_export": "a file",
}
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
"""Looked at for all: these pages are the admin's own."""


def rows() -> dict[str, list[Page]]:
    """Returns the rows by the name of their URL."""
    from metering.models import ApiKey

    found = dict(OWN_PAGES)
    found["usage-key"] = [Page("/usage/keys/{key}", MEMBER_ALONE, ApiKey)]
    assert get_resolver().url_patterns, "they register the admin's models"
    for model in admin.site._registry:
        found |= _pages_of(model)
    found["admin:metering_account_change"].append(Page(ACCOUNT_IN_USE))
    return found


def _pages_of(model: type[Model]) -> dict[str, list[Page]]:
    """The admin's pages of one kind of row."""
    meta = model._meta
    name = f"{meta.app_label}_{meta.model_name}"
    at = f"/admin/{meta.app_label}/{meta.model_name}/"
    who_adds = OPERATORS if name in MADE_BY_HAND else NOBODY
    pages = {
        "changelist": Page(at),
        "add": Page(f"{at}add/", who_adds),
        "change": Page(f"{at}{{key}}/change/", model=model),
        "history": Page(f"{at}{{key}}/history/", OPERATORS, model, name == HISTORY_OF),
    }
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
            if who in page.seen_by and page.is_looked_at:
                label = name.replace(":", "-").replace("_", "-")
                yield f"{label}-{number + 1}" if number else label, page


def pages_not_for(who: Who) -> list[Page]:
    return [page for pages in rows().values() for page in pages if who not in page.seen_by]


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
