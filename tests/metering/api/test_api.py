"""``/api/me``, and the API's refusals: to a key, a person and an anonymous caller."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from metering import services
from metering.actor import COMMAND
from metering.keys import api_key as keys
from metering.keys.store import DatabaseKeyStore
from metering.models import Account, Budget
from metering.services import Cap, CreatedKey
from tests.metering.api.api_support import get, ok, person, refused

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("listens_elsewhere")]

PERIOD = "from=2026-01-01&to=2026-01-02"


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
        before = timezone.now()
        soon = int((before + timedelta(hours=1)).timestamp())
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
        assert of_the_account["window_ends_at"] > before.isoformat()

    def test_a_window_that_is_over(
        self, client: Client, account: Account, made: CreatedKey
    ) -> None:
        cap = Cap(unit="tokens", cap=50, window="seconds", window_s=60)
        services.budget_create(actor=COMMAND, cap=cap, account=account)
        Budget.objects.update(spent=7, reserved=3, window_ends_unix_s=1000)
        budget = ok(client, "me", made.key)["budgets"][0]
        assert (budget["spent"], budget["reserved"], budget["left"]) == (0, 3, 47)
        assert budget["window_ends_at"] is None

    def test_a_browser(self, account: Account) -> None:
        """A user who is logged in to the admin opens the address."""
        accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
        client = person("alice", account)
        assert ok(client, "me", accept=accept)["user"] == "alice"
        assert ok(client, "usage", accept=accept)["by"] == "day"

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
        assert refused(client, "me", "hx-cut") == (401, "invalid_api_key")

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

    def test_an_unknown_key_where_none_is_needed(self, client: Client, settings: Any) -> None:
        settings.CONFIG = replace(settings.CONFIG, allow_anonymous=True)
        for path in ("me", "overview", "keys"):
            assert refused(client, path, "sk-placeholder") == (401, "invalid_api_key")

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

    def test_our_own_mistake_shows_nothing(
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
