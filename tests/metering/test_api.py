"""``/api/me`` and ``/api/usage``: a key, an owner, a viewer, staff, a stranger and nobody."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from metering import keys, services
from metering.actor import COMMAND
from metering.key_store import DatabaseKeyStore
from metering.models import Account, Budget, UsageHour
from metering.services import Cap, CreatedKey

pytestmark = pytest.mark.django_db

PERIOD = "from=2026-01-01&to=2026-01-02"


@pytest.fixture(autouse=True)
def _listens_elsewhere(settings: Any) -> None:
    """Where callers need a key; the host's check lets Django's test client through."""
    settings.CONFIG = replace(
        django_settings.CONFIG, listen_host="0.0.0.0", api_key=None, allowed_hosts=("testserver",)
    )
    settings.ALLOWED_HOSTS = ["testserver"]


@pytest.fixture
def on_loopback(settings: Any, _listens_elsewhere: None) -> None:
    settings.CONFIG = replace(settings.CONFIG, listen_host="127.0.0.1")


@pytest.fixture
def made(account: Account) -> CreatedKey:
    return services.key_create(actor=COMMAND, account=account, name="ci")


def get(client: Client, path: str, key: str | None = None, **headers: str) -> Any:
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return client.get(f"/api/{path}", headers=headers)


def ok(client: Client, path: str, key: str | None = None, **headers: str) -> Any:
    response = get(client, path, key, **headers)
    assert response.status_code == 200, response.content
    assert response["Content-Type"] == "application/json"
    return response.json()


def refused(client: Client, path: str, key: str | None = None, **headers: str) -> tuple[int, str]:
    """The status and the code; the body has all that a problem has."""
    response = get(client, path, key, **headers)
    assert response["Content-Type"].startswith("application/problem+json")
    problem = response.json()
    assert problem.keys() == {"type", "title", "status", "code", "detail", "param"}
    assert problem["status"] == response.status_code
    if response.status_code == 401:
        assert response["WWW-Authenticate"] == "Bearer"
    return response.status_code, problem["code"]


def person(name: str, account: Account | None = None, role: str = "owner", **fields: Any) -> Client:
    user = User.objects.create_user(name, **fields)
    if account is not None:
        services.membership_set(actor=COMMAND, account=account, user=user, role=role)
    client = Client()
    client.force_login(user)
    return client


class TestMe:
    def test_a_key(self, client: Client, account: Account, made: CreatedKey) -> None:
        shown = ok(client, "me", made.key)
        assert (shown["account"], shown["key"]) == ("research", made.row.prefix)
        assert shown["scopes"] == ["inference", "usage:read"]
        assert (shown["user"], shown["is_anonymous"], shown["models"]) == (None, False, None)
        assert shown["budgets"] == []
        assert ok(client, "me", **{"x-api-key": made.key}) == shown

    def test_budgets_as_they_stand(
        self, client: Client, account: Account, made: CreatedKey
    ) -> None:
        services.budget_create(
            actor=COMMAND, cap=Cap(unit="micro_usd", cap=1000, window="month"), account=account
        )
        services.budget_create(
            actor=COMMAND,
            cap=Cap(unit="tokens", cap=50, window="seconds", window_s=60),
            key=made.row,
        )
        soon = int((timezone.now() + timedelta(hours=1)).timestamp())
        Budget.objects.filter(unit="tokens").update(spent=7, reserved=3, window_ends_unix_s=soon)
        of_the_key, of_the_account = ok(client, "me", made.key)["budgets"]
        assert {name: of_the_key[name] for name in ("on", "owner", "unit", "cap")} == {
            "on": "key",
            "owner": made.row.prefix,
            "unit": "tokens",
            "cap": 50,
        }
        assert [of_the_key[name] for name in ("spent", "reserved", "left")] == [7, 3, 40]
        assert (of_the_key["window"], of_the_key["window_s"]) == ("seconds", 60)
        ends_at = datetime.fromtimestamp(soon, UTC).isoformat()
        assert of_the_key["window_ends_at"] == ends_at
        assert (of_the_account["on"], of_the_account["owner"]) == ("account", "research")
        assert of_the_account["window_ends_at"] > timezone.now().isoformat()

    def test_a_window_that_is_over(
        self, client: Client, account: Account, made: CreatedKey
    ) -> None:
        cap = Cap(unit="tokens", cap=50, window="seconds", window_s=60)
        services.budget_create(actor=COMMAND, cap=cap, account=account)
        Budget.objects.update(spent=7, reserved=3, window_ends_unix_s=1000)
        budget = ok(client, "me", made.key)["budgets"][0]
        assert (budget["spent"], budget["reserved"], budget["left"]) == (0, 3, 47)
        assert budget["window_ends_at"] is None

    def test_a_person(self, account: Account) -> None:
        shown = ok(person("alice", account, "member"), "me")
        assert (shown["user"], shown["account"], shown["key"]) == ("alice", "research", None)
        assert shown["accounts"] == [{"name": "research", "role": "member"}]
        assert shown["scopes"] == ["inference", "usage:read"]

    def test_a_person_without_an_account(self, account: Account) -> None:
        shown = ok(person("eve"), "me")
        assert (shown["user"], shown["account"], shown["accounts"]) == ("eve", None, [])

    def test_a_person_of_two_accounts(self, account: Account) -> None:
        client = person("alice", account, "viewer")
        other = services.account_create(actor=COMMAND, name="ops")
        user = User.objects.get(username="alice")
        services.membership_set(actor=COMMAND, account=other, user=user, role="owner")
        assert ok(client, "me")["account"] == "ops"
        assert ok(client, "me?account=research")["scopes"] == ["usage:read"]
        assert refused(client, "me?account=shared") == (403, "account_not_allowed")

    def test_anonymous_on_loopback(
        self, client: Client, account: Account, on_loopback: None
    ) -> None:
        shown = ok(client, "me")
        assert (shown["account"], shown["is_anonymous"]) == ("anonymous", True)
        assert ok(client, "me", "sk-placeholder") == shown

    def test_the_shared_key(self, client: Client, account: Account, settings: Any) -> None:
        settings.CONFIG = replace(settings.CONFIG, api_key="a shared key")
        assert ok(client, "me", "a shared key")["account"] == "shared"
        assert refused(client, "me", "another") == (401, "invalid_api_key")
        settings.CONFIG = replace(settings.CONFIG, listen_host="127.0.0.1")
        assert refused(client, "me") == (401, "invalid_api_key")


class TestRefusals:
    @pytest.mark.parametrize("path", ["me", "usage"])
    def test_nobody(self, client: Client, account: Account, path: str) -> None:
        assert refused(client, path) == (401, "invalid_api_key")
        assert refused(client, path, "sk-placeholder") == (401, "invalid_api_key")
        assert refused(client, path, keys.make_key().key) == (401, "invalid_api_key")

    def test_a_forged_secret(self, client: Client, made: CreatedKey) -> None:
        assert refused(client, "me", made.key[:-32] + "a" * 32) == (401, "invalid_api_key")

    def test_revoked_and_expired(self, client: Client, account: Account) -> None:
        made = services.key_create(actor=COMMAND, account=account)
        services.key_revoke(actor=COMMAND, key=made.row)
        assert refused(client, "me", made.key) == (401, "invalid_api_key")
        late = services.key_create(
            actor=COMMAND, account=account, expires_at=timezone.now() + timedelta(days=1)
        )
        late.row.expires_at = timezone.now()
        late.row.save(update_fields=["expires_at"])
        assert refused(client, "me", late.key) == (401, "invalid_api_key")

    def test_a_disabled_account(self, client: Client, account: Account, made: CreatedKey) -> None:
        session = person("alice", account)
        account.enabled = False
        services.account_update(actor=COMMAND, account=account, changed_fields=["enabled"])
        assert refused(client, "me", made.key) == (401, "invalid_api_key")
        assert ok(session, "me")["account"] is None

    def test_a_key_without_the_scope(self, client: Client, account: Account) -> None:
        made = services.key_create(actor=COMMAND, account=account, scopes=["inference"])
        assert ok(client, "me", made.key)["scopes"] == ["inference"]
        assert refused(client, "usage", made.key) == (403, "insufficient_scope")

    def test_anonymous_callers_see_no_usage(
        self, client: Client, account: Account, on_loopback: None
    ) -> None:
        assert refused(client, "usage") == (403, "insufficient_scope")

    def test_urls_and_methods(self, client: Client, made: CreatedKey) -> None:
        assert refused(client, "nothing/here", made.key) == (404, "unknown_url")
        assert refused(client, "nothing/here") == (401, "invalid_api_key")
        response = client.post("/api/me", headers={"authorization": f"Bearer {made.key}"})
        assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")

    def test_a_database_that_is_away(
        self, client: Client, made: CreatedKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_args: object, **_options: object) -> None:
            raise OperationalError("gone, with secrets")

        monkeypatch.setattr("metering.models.Budget.objects.filter", fail)
        response = get(client, "me", made.key)
        assert (response.status_code, response["Retry-After"]) == (503, "1")
        assert response.json()["code"] == "database_unavailable"
        assert b"secrets" not in response.content

    def test_our_own_mistake_tells_nothing(
        self, client: Client, made: CreatedKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_args: object) -> None:
            raise RuntimeError("inner workings")

        monkeypatch.setattr(DatabaseKeyStore, "keys", fail)
        response = get(client, "me", made.key)
        assert (response.status_code, response.json()["code"]) == (500, "internal_error")
        assert b"inner" not in response.content

    @pytest.mark.parametrize(
        ("query", "code", "param"),
        [
            ("by=week", "invalid_value", "by"),
            ("from=soon", "invalid_value", "from"),
            ("from=2026-01-02&to=2026-01-01", "invalid_value", "from"),
            ("limit=0", "invalid_value", "limit"),
            ("limit=x", "invalid_value", "limit"),
            ("offset=-1", "invalid_value", "offset"),
            ("offset=99999999999999999999", "invalid_value", "offset"),
            ("group_by=day", "unsupported_parameter", "group_by"),
        ],
    )
    def test_parameters(
        self, client: Client, made: CreatedKey, query: str, code: str, param: str
    ) -> None:
        assert refused(client, f"usage?{query}", made.key) == (400, code)
        assert get(client, f"usage?{query}", made.key).json()["param"] == param

    def test_a_form_that_is_not_there(self, client: Client, made: CreatedKey) -> None:
        assert get(client, "usage?format=xml", made.key).status_code == 404
        response = get(client, "usage", made.key, accept="application/xml")
        assert response.status_code == 406


@pytest.fixture
def hours(account: Account, made: CreatedKey) -> None:
    """Of the key, of another key of its account, and of another account."""
    for owner, key, model, requests in (
        ("research", made.row.prefix, "tiny", 1),
        ("research", made.row.prefix, "large", 2),
        ("research", "hx-another000", "tiny", 4),
        ("shared", "", "tiny", 8),
    ):
        UsageHour.objects.create(
            hour=datetime(2026, 1, 1, 5, tzinfo=UTC),
            account=owner,
            key=key,
            model=model,
            requests=requests,
            cost_micro_usd=requests,
        )


@pytest.mark.usefixtures("hours")
class TestUsage:
    def total(self, client: Client, query: str = "", key: str | None = None) -> int:
        shown = ok(client, f"usage?{PERIOD}{query}", key)
        return int(shown["total"]["requests"])

    def test_a_key_sees_its_own(self, client: Client, made: CreatedKey) -> None:
        shown = ok(client, f"usage?by=model&{PERIOD}", made.key)
        assert [(row["model"], row["requests"]) for row in shown["data"]] == [
            ("large", 2),
            ("tiny", 1),
        ]
        assert (shown["by"], shown["from"], shown["to"]) == ("model", "2026-01-01", "2026-01-02")
        assert shown["total"]["cost_micro_usd"] == 3
        assert self.total(client, "&account=research", made.key) == 3
        assert self.total(client, f"&key={made.row.prefix}", made.key) == 3
        for query, code in (
            ("account=shared", "account_not_allowed"),
            ("account=nowhere", "account_not_allowed"),
            ("key=hx-another000", "key_not_allowed"),
        ):
            assert refused(client, f"usage?{query}", made.key) == (403, code)

    @pytest.mark.parametrize("role", ["owner", "member", "viewer"])
    def test_a_person_sees_their_account(
        self, account: Account, made: CreatedKey, role: str
    ) -> None:
        client = person("alice", account, role)
        assert self.total(client) == 7
        assert self.total(client, f"&key={made.row.prefix}") == 3
        assert refused(client, "usage?account=shared") == (403, "account_not_allowed")

    def test_a_stranger_sees_nothing(self) -> None:
        client = person("eve")
        assert self.total(client) == 0
        assert refused(client, "usage?account=research") == (403, "account_not_allowed")

    def test_staff_see_everything(self) -> None:
        client = person("root", is_staff=True)
        assert self.total(client) == 15
        assert self.total(client, "&account=shared") == 8
        assert refused(client, "usage?account=nowhere") == (404, "account_not_found")

    def test_the_shared_key_sees_its_account(self, client: Client, settings: Any) -> None:
        settings.CONFIG = replace(settings.CONFIG, api_key="a shared key")
        assert self.total(client, key="a shared key") == 8

    @pytest.mark.parametrize(
        ("path", "headers"),
        [("usage?format=csv&", {}), ("usage?", {"accept": "text/csv"})],
    )
    def test_csv(
        self, client: Client, made: CreatedKey, path: str, headers: dict[str, str]
    ) -> None:
        response = get(client, f"{path}by=model&{PERIOD}", made.key, **headers)
        assert response.status_code == 200
        assert response["Content-Type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(response.content.decode())))
        assert [(row["model"], row["requests"]) for row in rows] == [("large", "2"), ("tiny", "1")]

    def test_a_refusal_of_csv_is_a_problem_all_the_same(self, client: Client) -> None:
        response = client.get("/api/usage?format=csv")
        assert response.status_code == 401
        assert json.loads(response.content)["code"] == "invalid_api_key"

    def test_pages(self, client: Client, made: CreatedKey) -> None:
        first = ok(client, f"usage?by=model&limit=1&{PERIOD}", made.key)
        assert (first["num_rows"], len(first["data"])) == (2, 1)
        assert first["total"]["requests"] == 3, "of all pages"
        path = first["next"].removeprefix("http://testserver/api/")
        second = ok(client, path, made.key)
        assert second["next"] is None
        assert {row["model"] for row in first["data"] + second["data"]} == {"tiny", "large"}

    def test_thirty_days_by_default(self, client: Client, made: CreatedKey) -> None:
        shown = ok(client, "usage", made.key)
        first, last = (datetime.fromisoformat(shown[name]) for name in ("from", "to"))
        assert last - first == timedelta(days=29)
        assert shown["data"] == []
