"""Who asks by the login's cookie, from whose budget, and that no key is made for it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.test import Client

from inference.gateway.request.identify import LOGIN, Login
from metering import services
from metering.actor import COMMAND
from metering.models import Account, ApiKey, AuditEntry
from metering.playground.login import path_by_login, with_login
from metering.principal import RateLimits, Scope
from metering.services import Cap
from tests.metering.callers import person

pytestmark = pytest.mark.django_db


@pytest.fixture
def account() -> Account:
    services.account_create(actor=COMMAND, name="theirs")
    return services.account_create(actor=COMMAND, name="ours")


def offered(client: Client) -> list[str]:
    page = client.get("/playground/").content.decode()
    found = re.search(r'<script id="playground-settings"[^>]*>(.*?)</script>', page)
    return list(json.loads(found[1])["accounts"]) if found else []


def asked(client: Client, account: str, *, method: str = "POST", **headers: str) -> Login:
    """The login of a request that the page's script sends, with other headers or without some."""
    csrf = client.get("/playground/")
    token = re.search(r'data-csrf="(\w+)"', csrf.content.decode())
    cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
    sent = {
        "host": "testserver",
        "cookie": cookies,
        "content-length": "999999",
        "x-csrftoken": token[1] if token else "",
        **headers,
    }
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/playground/v1/chat/completions",
        "query_string": f"account={account}".encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 80),
    }
    known = async_to_sync(with_login)(scope, get_asgi_application())
    assert {**known, LOGIN: None} == {**scope, LOGIN: None}, "the request itself is as it was"
    login: Login = known[LOGIN]
    return login


def refusal(login: Login) -> tuple[int, str]:
    assert login.principal is None and login.refusal is not None
    return login.refusal.status, login.refusal.code


def test_a_login_is_good_for_what_the_page_asks() -> None:
    for path in ("/v1/chat/completions", "/v1/models", "/v1/models/org/name"):
        assert path_by_login(f"/playground{path}") == path
        assert path_by_login(path) is None
    for path in ("/playground/v1/responses", "/playground/v1/batches", "/playground/"):
        assert path_by_login(path) is None


def test_a_member_asks_from_their_account_and_makes_no_key(account: Account) -> None:
    account.max_concurrent = 3
    account.weight = 2
    account.save()
    cap = Cap(unit="micro_usd", cap=5, window="balance")
    budget = services.budget_create(actor=COMMAND, account=account, cap=cap)
    client = person("ann", account, role="member")
    assert offered(client) == ["ours"]
    num_entries = AuditEntry.objects.count()
    for method in ("POST", "GET"):
        login = asked(client, "ours", method=method)
        assert login.username == "ann" and login.principal is not None
        principal = login.principal
        assert (principal.account, principal.key, principal.weight) == ("ours", "", 2)
        assert principal.scopes == {Scope.INFERENCE}
        assert principal.budgets == (budget.pk,)
        assert principal.account_limits == RateLimits(max_concurrent=3)
    assert not ApiKey.objects.exists()
    assert AuditEntry.objects.count() == num_entries


def test_nobody_asks_from_anothers_a_viewer_from_none_and_an_operator_from_any(
    account: Account,
) -> None:
    client = person("ann", account, role="member")
    for named in ("theirs", "nowhere", "", "anonymous"):
        assert refusal(asked(client, named)) == (403, "account_not_allowed")
    viewer = person("vic", account, role="viewer")
    assert offered(viewer) == []
    assert refusal(asked(viewer, "ours", **{"x-csrftoken": ""})) == (403, "origin_not_allowed")
    opal = person("opal", Account.objects.get(name="theirs"), is_staff=True)
    names = offered(opal)
    assert names[0] == "theirs" and "ours" in names and "anonymous" not in names
    login = asked(opal, "ours")
    assert login.principal is not None and login.principal.account == "ours"
    Account.objects.filter(name="ours").update(enabled=False)
    assert refusal(asked(opal, "ours")) == (403, "account_not_allowed")


def test_pages_of_elsewhere_and_who_is_logged_out_ask_nothing(account: Account) -> None:
    client = person("ann", account, role="member")
    assert asked(client, "ours").principal is not None
    token = client.cookies["csrftoken"].value
    for headers, refused in (
        ({"x-csrftoken": ""}, (403, "origin_not_allowed")),
        ({"x-csrftoken": "a" * 32}, (403, "origin_not_allowed")),
        ({"origin": "https://elsewhere.example"}, (403, "origin_not_allowed")),
        ({"host": "elsewhere.example"}, (403, "origin_not_allowed")),
        ({"cookie": f"csrftoken={token}"}, (401, "invalid_api_key")),
    ):
        for method in ("POST", "GET"):
            login = asked(client, "ours", method=method, **headers)
            assert refusal(login) == refused, (headers, method)
    identify = "/playground/identify?account=ours"
    answer = client.post(identify)
    assert (answer.status_code, answer.content) == (204, b"")
    assert Client().post(identify)["Location"].startswith("/login/")
    User.objects.filter(username="ann").update(is_active=False)
    assert refusal(asked(client, "ours", **{"x-csrftoken": token})) == (401, "invalid_api_key")
