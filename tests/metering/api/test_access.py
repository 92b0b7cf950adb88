"""Who may open what of Django's own paths. Taken from the URL table itself: a path without its row
here fails. The inference API's rows are in ``tests/inference/gateway/test_access.py``.

The owner's key is asked about; a teammate has another key of the account, a stranger a key of
another one, and a narrow key may only ask models. The last role sends no key to a server that
asks for one. Members are people with a session, operators are staff.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from metering import services
from metering.audit import COMMAND
from metering.models import Account
from metering.services import CreatedKey
from tests.browser.pages import MADE_BY_HAND
from tests.cases import each_case
from tests.metering.callers import person, staff

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

ROLES = ("owner", "teammate", "stranger", "narrow", "member", "operator", "nobody")
LOG_IN = 302
FLEET = {
    200: """
        overview neurons invitations policy settings accounts members keys budgets devices replicas
        assignments catalogue models.toml aliases upstreams load-jobs downloads cached series audit
        schema docs bench/health bench/dimensions bench/summary bench/runs bench/scaling
        bench/concurrency bench/swap bench/series""",
    400: "hub hub/<str:owner>/<str:name> bench/compare",
    404: """
        neurons/<str:name> neurons/<str:name>/version neurons/<str:name>/discovery
        neurons/<str:name>/health neurons/<str:name>/models neurons/<str:name>/cached
        neurons/<str:name>/models/<path:model>/endpoint neurons/<str:name>/models/<path:model>/logs
        invitations/<str:name> settings/<str:name> accounts/<str:name>
        members/<str:account>/<str:user> keys/<str:prefix> budgets/<int:pk> catalogue/<str:name>
        catalogue/<str:name>/plan aliases/<path:name> upstreams/<str:name> load-jobs/<uuid:pk>
        load-jobs/<uuid:pk>/events downloads/<uuid:pk> downloads/<uuid:pk>/events""",
    405: """
        neurons/<str:name>/admit neurons/<str:name>/drain neurons/<str:name>/refuse
        neurons/<str:name>/resume neurons/<str:name>/models/load neurons/<str:name>/models/unload
        catalogue/<str:name>/load catalogue/<str:name>/reload catalogue/<str:name>/unload
        catalogue/<str:name>/sleep catalogue/<str:name>/wake upstreams/<str:name>/test
        load-jobs/<uuid:pk>/cancel downloads/<uuid:pk>/cancel""",
}
"""What an operator gets at these paths of the API; what takes POST alone, 405."""
QUERIES = {
    "api/bench/series": "?model=tiny&scenario=chat:128",
    "api/hub/<str:owner>/<str:name>": "?asks=nobody",
    "series/panel": "?kind=fleet",
}
NO_UUID = "00000000-0000-4000-8000-000000000000"
NOBODYS = {"str": "nobody", "path": "org/nobody", "int": "0", "uuid": NO_UUID}
PAGES: dict[tuple[int, int], str] = {
    (200, 200): "usage/ requests/ usage/keys password/ playground/",
    (403, 200): """
        series/panel usage/accounts usage/audit bench/ bench/runs/ bench/runs.csv bench/jobs/""",
    (404, 404): "requests/<str:request_id> usage/keys/<str:prefix>",
    (405, 405): "usage/keys/<str:prefix>/revoke playground/identify",
    (403, 404): "bench/runs/<int:pk>/ bench/jobs/<int:pk>",
    (403, 405): "bench/jobs/start bench/jobs/<int:pk>/cancel",
}
"""What a member and an operator get there; keys open no page."""


def url_of(path: str) -> str:
    filled = re.sub(r"<(\w+):\w+>", lambda found: NOBODYS[found[1]], path)
    return f"/{filled}{QUERIES.get(path, '')}"


READ_USAGE = {"narrow": 403, "nobody": 401}
ROWS: dict[str, tuple[str, dict[str, int]]] = {
    "api/me": ("/api/me", dict.fromkeys(ROLES, 200) | {"nobody": 401}),
    "api/usage": ("/api/usage", dict.fromkeys(ROLES, 200) | READ_USAGE),
    "api/requests": ("/api/requests", dict.fromkeys(ROLES, 200) | READ_USAGE),
    **{
        path: (url_of(path), dict.fromkeys(ROLES, 404) | READ_USAGE)
        for path in ("api/requests/<str:pk>", "api/requests/<str:pk>/capture")
    },
    # The fleet is open to staff alone, of these.
    **{
        path: (url_of(path), dict.fromkeys(ROLES, 403) | {"operator": status, "nobody": 401})
        for status, paths in FLEET.items()
        for path in (f"api/{name}" for name in paths.split())
    },
    "version": ("/version", dict.fromkeys(ROLES, 403) | {"operator": 200, "nobody": 401}),
    "api/": ("/api/nothing", dict.fromkeys(ROLES, 404) | {"nobody": 401}),
    "api/bench/": ("/api/bench/nothing", dict.fromkeys(ROLES, 404) | {"nobody": 401}),
    **{
        f"playground/conversations{path}": (
            f"/playground/conversations{url}",
            dict.fromkeys(ROLES, 401) | {"member": status, "operator": status},
        )
        for path, url, status in (
            ("", "", 200),
            ("/<uuid:conversation_id>", f"/{NO_UUID}", 404),
            ("/<uuid:conversation_id>/export", f"/{NO_UUID}/export?format=md", 404),
        )
    },
    "": ("/", dict.fromkeys(ROLES, 302)),
    "favicon.ico": ("/favicon.ico", dict.fromkeys(ROLES, 302)),
    "^docs/?$": ("/docs", dict.fromkeys(ROLES, 200)),
    "login/": ("/login/", dict.fromkeys(ROLES, 200) | {"member": 302, "operator": 302}),
    "logout/": ("/logout/", dict.fromkeys(ROLES, 405)),
    "playground/markdown": ("/playground/markdown", dict.fromkeys(ROLES, 405)),
    "welcome/<uidb64>/<token>/": ("/welcome/MQ/no-token/", dict.fromkeys(ROLES, 200)),
    **{
        path: (
            url_of(path),
            dict.fromkeys(ROLES, LOG_IN) | {"member": member, "operator": operator},
        )
        for (member, operator), paths in PAGES.items()
        for path in paths.split()
    },
}


def paths(patterns: list[URLPattern | URLResolver], prefix: str = "") -> Iterator[str]:
    for each in patterns:
        path = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from paths(each.url_patterns, path)
        else:
            yield path


ALL_PATHS = list(paths(get_resolver().url_patterns))


def test_every_path_has_its_row() -> None:
    assert {path for path in ALL_PATHS if not path.startswith("admin/")} == ROWS.keys()


@pytest.fixture
def ask(account: Account, made: CreatedKey) -> Callable[[str, str], int]:
    other = services.account_create(actor=COMMAND, name="elsewhere")
    keys = {
        "owner": made.key,
        "teammate": services.key_create(actor=COMMAND, account=account).key,
        "stranger": services.key_create(actor=COMMAND, account=other).key,
        "narrow": services.key_create(actor=COMMAND, account=account, scopes=["inference"]).key,
    }

    @cache
    def client_of(role: str) -> Client:
        if role == "member":
            return person("alice", account)
        client = Client()
        if role == "operator":
            client.force_login(User.objects.create_superuser("root"))
        return client

    def ask(role: str, path: str) -> int:
        headers = {"authorization": f"Bearer {keys[role]}"} if role in keys else {}
        return client_of(role).get(path, headers=headers).status_code

    return ask


@each_case("row", ROWS)
def test_access(ask: Callable[[str, str], int], row: str) -> None:
    path, expected = ROWS[row]
    assert {role: ask(role, path) for role in ROLES} == expected


@each_case("role", [role for role in ROLES if role != "operator"])
def test_the_admin_is_the_operators(ask: Callable[[str, str], int], role: str) -> None:
    """The dashboard too."""
    urls = [url_of(path) for path in ALL_PATHS if path.startswith("admin/")]
    assert {url for url in urls if ask(role, url) != LOG_IN} == {"/admin/login/"}


def test_every_list_of_the_admin_opens_to_those_with_its_permission(admin_client: Client) -> None:
    client, made = staff(), {f"/admin/{name.replace('_', '/')}/" for name in MADE_BY_HAND}
    lists = [f"/admin/{one._meta.app_label}/{one._meta.model_name}/" for one in site._registry]
    for path in lists:
        assert (admin_client.get(path).status_code, client.get(path).status_code) == (200, 403)
    added = {path for path in lists if admin_client.get(f"{path}add/").status_code == 200}
    assert added == made | {"/admin/fleet/fleetpolicy/", "/admin/bench/sweepplan/"}
