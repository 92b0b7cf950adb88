"""Who may open what of Django's own paths. Taken from the URL table itself: a path without its row
here fails. The inference API's rows are in ``tests/inference/gateway/test_access.py``.

The owner's key is asked about; a teammate has another key of the account, a stranger a key of
another one, and a narrow key may only ask models. The last role sends no key to a server that
asks for one. Members are people with a session, operators are staff.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from metering import services
from metering.actor import COMMAND
from metering.models import Account
from metering.services import CreatedKey
from tests.cases import each_case
from tests.metering.api.api_support import person

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

ROLES = ("owner", "teammate", "stranger", "narrow", "member", "operator", "nobody")
LOG_IN = 302
NO_JOB = "00000000-0000-4000-8000-000000000000"
FLEET: dict[str, tuple[str, int]] = {
    "api/overview": ("/api/overview", 200),
    "api/neurons": ("/api/neurons", 200),
    "api/neurons/<str:name>": ("/api/neurons/beast", 404),
    "api/neurons/<str:name>/admit": ("/api/neurons/beast/admit", 405),
    "api/neurons/<str:name>/drain": ("/api/neurons/beast/drain", 405),
    "api/neurons/<str:name>/refuse": ("/api/neurons/beast/refuse", 405),
    "api/neurons/<str:name>/resume": ("/api/neurons/beast/resume", 405),
    "api/neurons/<str:name>/version": ("/api/neurons/beast/version", 404),
    "api/neurons/<str:name>/discovery": ("/api/neurons/beast/discovery", 404),
    "api/neurons/<str:name>/health": ("/api/neurons/beast/health", 404),
    "api/neurons/<str:name>/models": ("/api/neurons/beast/models", 404),
    "api/neurons/<str:name>/models/load": ("/api/neurons/beast/models/load", 405),
    "api/neurons/<str:name>/models/unload": ("/api/neurons/beast/models/unload", 405),
    "api/neurons/<str:name>/models/<path:model>/endpoint": (
        "/api/neurons/beast/models/tiny/endpoint",
        404,
    ),
    "api/invitations": ("/api/invitations", 200),
    "api/invitations/<str:name>": ("/api/invitations/beast", 404),
    "api/policy": ("/api/policy", 200),
    "api/settings": ("/api/settings", 200),
    "api/settings/<str:name>": ("/api/settings/NOTHING", 404),
    "api/accounts": ("/api/accounts", 200),
    "api/accounts/<str:name>": ("/api/accounts/nobody", 404),
    "api/members": ("/api/members", 200),
    "api/members/<str:account>/<str:user>": ("/api/members/nobody/nobody", 404),
    "api/keys": ("/api/keys", 200),
    "api/keys/<str:prefix>": ("/api/keys/hx-nobodys000", 404),
    "api/budgets": ("/api/budgets", 200),
    "api/budgets/<int:pk>": ("/api/budgets/0", 404),
    "api/devices": ("/api/devices", 200),
    "api/replicas": ("/api/replicas", 200),
    "api/assignments": ("/api/assignments", 200),
    "api/hub": ("/api/hub", 400),
    "api/hub/<str:owner>/<str:name>": ("/api/hub/org/name?asks=nobody", 400),
    "api/catalogue": ("/api/catalogue", 200),
    "api/catalogue/<str:name>": ("/api/catalogue/tiny", 404),
    "api/catalogue/<str:name>/plan": ("/api/catalogue/tiny/plan", 404),
    "api/catalogue/<str:name>/load": ("/api/catalogue/tiny/load", 405),
    "api/catalogue/<str:name>/reload": ("/api/catalogue/tiny/reload", 405),
    "api/catalogue/<str:name>/unload": ("/api/catalogue/tiny/unload", 405),
    "api/catalogue/<str:name>/sleep": ("/api/catalogue/tiny/sleep", 405),
    "api/catalogue/<str:name>/wake": ("/api/catalogue/tiny/wake", 405),
    "api/models.toml": ("/api/models.toml", 200),
    "api/aliases": ("/api/aliases", 200),
    "api/aliases/<path:name>": ("/api/aliases/openai/gpt-5", 404),
    "api/upstreams": ("/api/upstreams", 200),
    "api/upstreams/<str:name>": ("/api/upstreams/box", 404),
    "api/upstreams/<str:name>/test": ("/api/upstreams/box/test", 405),
    "api/load-jobs": ("/api/load-jobs", 200),
    "api/load-jobs/<uuid:pk>": (f"/api/load-jobs/{NO_JOB}", 404),
    "api/load-jobs/<uuid:pk>/cancel": (f"/api/load-jobs/{NO_JOB}/cancel", 405),
    "api/load-jobs/<uuid:pk>/events": (f"/api/load-jobs/{NO_JOB}/events", 404),
    "api/downloads": ("/api/downloads", 200),
    "api/downloads/<uuid:pk>": (f"/api/downloads/{NO_JOB}", 404),
    "api/downloads/<uuid:pk>/cancel": (f"/api/downloads/{NO_JOB}/cancel", 405),
    "api/downloads/<uuid:pk>/events": (f"/api/downloads/{NO_JOB}/events", 404),
    "api/cached": ("/api/cached", 200),
    "api/neurons/<str:name>/cached": ("/api/neurons/beast/cached", 404),
    "api/neurons/<str:name>/models/<path:model>/logs": (
        "/api/neurons/beast/models/tiny/logs",
        404,
    ),
    **{
        f"api/bench/{name}": (f"/api/bench/{name}", 200)
        for name in (
            *("health", "dimensions", "summary", "runs", "scaling", "concurrency"),
            "swap",
        )
    },
    "api/bench/series": ("/api/bench/series?model=tiny&scenario=chat:128", 200),
    "api/bench/compare": ("/api/bench/compare", 400),
    "version": ("/version", 200),
    "api/series": ("/api/series", 200),
    "api/audit": ("/api/audit", 200),
    "api/schema": ("/api/schema", 200),
    "api/docs": ("/api/docs", 200),
}
"""Each with a URL, and what an operator gets there; what takes POST alone, 405."""
NO_UUID = "00000000-0000-4000-8000-000000000000"
PAGES: dict[str, tuple[str, int, int]] = {
    "usage/": ("/usage/", 200, 200),
    "requests/": ("/requests/", 200, 200),
    "requests/<str:request_id>": ("/requests/none", 404, 404),
    "series/panel": ("/series/panel?kind=fleet", 403, 200),
    "usage/keys": ("/usage/keys", 200, 200),
    "usage/keys/<str:prefix>": ("/usage/keys/hx-nobodys000", 404, 404),
    "usage/keys/<str:prefix>/revoke": ("/usage/keys/hx-nobodys000/revoke", 405, 405),
    "usage/accounts": ("/usage/accounts", 403, 200),
    "usage/audit": ("/usage/audit", 403, 200),
    **{path: (f"/{path}", 403, 200) for path in (*("bench/", "bench/runs/", "bench/runs.csv"),)},
    **{
        path: (f"/{path}", 403, 302)
        for path in ("bench/trends/", "bench/concurrency/", "bench/compare/")
    },
    "bench/runs/<int:pk>/": ("/bench/runs/1/", 403, 404),
    "bench/jobs/": ("/bench/jobs/", 403, 200),
    "bench/jobs/start": ("/bench/jobs/start", 403, 405),
    "bench/jobs/<int:pk>": ("/bench/jobs/1", 403, 404),
    "bench/jobs/<int:pk>/cancel": ("/bench/jobs/1/cancel", 403, 405),
    "password/": ("/password/", 200, 200),
    "playground/": ("/playground/", 200, 200),
    "playground/identify": ("/playground/identify", 405, 405),
}
"""Each with a URL, and what a member and an operator get there; keys open no page."""
ROWS: dict[str, tuple[str, dict[str, int]]] = {
    "api/me": (
        "/api/me",
        dict.fromkeys(ROLES, 200) | {"nobody": 401},
    ),
    "api/usage": (
        "/api/usage",
        dict.fromkeys(ROLES, 200) | {"narrow": 403, "nobody": 401},
    ),
    "api/requests": (
        "/api/requests",
        dict.fromkeys(ROLES, 200) | {"narrow": 403, "nobody": 401},
    ),
    "api/requests/<str:pk>": (
        "/api/requests/none",
        dict.fromkeys(ROLES, 404) | {"narrow": 403, "nobody": 401},
    ),
    "api/requests/<str:pk>/capture": (
        "/api/requests/none/capture",
        dict.fromkeys(ROLES, 404) | {"narrow": 403, "nobody": 401},
    ),
    # The fleet is open to staff alone, of these.
    **{
        path: (url, dict.fromkeys(ROLES, 403) | {"operator": status, "nobody": 401})
        for path, (url, status) in FLEET.items()
    },
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
    "welcome/<uidb64>/<token>/": ("/welcome/MQ/no-token/", dict.fromkeys(ROLES, 200)),
    **{
        path: (url, dict.fromkeys(ROLES, LOG_IN) | {"member": member, "operator": operator})
        for path, (url, member, operator) in PAGES.items()
    },
}


def paths(patterns: list[URLPattern | URLResolver], prefix: str = "") -> Iterator[str]:
    for each in patterns:
        path = prefix + str(each.pattern)
        if path.startswith("admin/"):  # the admin's, and the dashboard's
            continue
        if isinstance(each, URLResolver):
            yield from paths(each.url_patterns, path)
        else:
            yield path


def test_every_path_has_its_row() -> None:
    assert set(paths(get_resolver().url_patterns)) == ROWS.keys()


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


def admin_paths() -> list[str]:
    """The index, and every list of every model."""
    assert get_resolver().url_patterns, "they register the models"
    models = [model._meta for model in site._registry]
    return ["/admin/", *(f"/admin/{meta.app_label}/{meta.model_name}/" for meta in models)]


@pytest.mark.parametrize("role", [role for role in ROLES if role != "operator"])
def test_the_admin_is_the_operators(ask: Callable[[str, str], int], role: str) -> None:
    client = person("bob") if role == "member" else None
    for path in admin_paths():
        status = client.get(path).status_code if client else ask(role, path)
        assert status == LOG_IN, path


def test_every_list_of_the_admin_opens() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("chief"))
    for path in admin_paths():
        assert client.get(path).status_code == 200, path
