"""The commands of keys: what they print, and how they fail."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from fleet.noun import expiry
from metering.actor import COMMAND
from metering.keys import api_key as keys
from metering.models import Account, ApiKey, Budget
from tests.metering.commands.command_output import output, printed_json, refused

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("kept_secret_key")]


class TestKeys:
    def test_a_key_that_was_chosen_elsewhere(
        self, account: Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def imported(word: str, *words: str) -> str:
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{word}\n"))
            return output("keys", "import", "research", "--key", "-", *words)

        text = imported("sk-team-0123456789", "--scopes", "accounts:read", "--name", "old")
        row = ApiKey.objects.get()
        assert row.prefix.startswith("im-") and row.prefix in text
        assert "sk-team" not in text
        headers = {"authorization": "Bearer sk-team-0123456789"}
        assert Client().get("/api/me", headers=headers).json()["key"] == row.prefix
        for word, message in (
            ("sk-team-0123456789", "there already"),
            ("short", "8 to 200"),
            (keys.make_key().key, "are made, not imported"),
        ):
            with pytest.raises(CommandError, match=message) as caught:
                imported(word)
            assert word not in str(caught.value)
        assert "sk-team" not in refused("keys", "revoke", "sk-team-0123456789", code=3)
        output("keys", "revoke", row.prefix)
        assert Client().get("/api/me", headers=headers).status_code == 401

    def test_change_and_show(self, account: Account) -> None:
        made = printed_json("keys", "create", "research", "--expires", "1d", "--cap-tokens=50")
        prefix = made["prefix"]
        output("keys", "change", prefix, "--name", "ci", "--expires", "never", "--rpm", "7")
        output("keys", "change", prefix, "--names-end-user", "true", "--capture-until", "2h")
        output("keys", "change", prefix, "--may-leave-network", "false")
        output("accounts", "change", "research", "--capture-until", "never")
        shown = printed_json("keys", "show", prefix)
        assert (shown["name"], shown["expires_at"]) == ("ci", None)
        assert (shown["requests_per_minute"], shown["names_end_user"]) == (7, True)
        assert shown["may_leave_network"] is False
        assert shown["capture_until"] is not None
        assert "50 tokens" in output("keys", "list", "--status", "active")
        budget = printed_json("budgets", "list", "--on-key", prefix)
        assert [one["id"] for one in budget] == [shown["budgets"][0]["id"]]
        assert "would key.revoke" in output("keys", "revoke", prefix, "--dry-run")
        output("keys", "revoke", prefix)
        assert "was revoked" in refused("keys", "change", prefix, "--name", "x", code=4)

    def test_the_key_alone_is_printed(self, account: Account) -> None:
        key = output("keys", "create", "research").strip()
        row = ApiKey.objects.get()
        assert keys.prefix_of(key) == row.prefix
        assert row.scopes == ["inference", "usage:read"]
        assert row.created_by == str(COMMAND)

    def test_everything_that_can_be_reported(self, account: Account) -> None:
        made = printed_json(
            "keys",
            "create",
            "research",
            "--name=ci",
            "--scopes=inference,fleet:read",
            "--expires=30d",
            "--cap-tokens=1000",
            "--cap-usd=0.1",
            "--window=3600",
            "--rpm=5",
            "--tpm=100",
        )
        assert keys.prefix_of(made["key"]) == made["prefix"]
        assert (made["account"], made["name"]) == ("research", "ci")
        assert made["scopes"] == ["inference", "fleet:read"]
        assert (made["requests_per_minute"], made["tokens_per_minute"]) == (5, 100)
        assert [
            (budget["unit"], budget["cap"], budget["window"], budget["window_s"])
            for budget in made["budgets"]
        ] == [("tokens", 1000, "seconds", 3600), ("micro_usd", 100_000, "seconds", 3600)]
        expires_at = datetime.fromisoformat(made["expires_at"])
        assert timedelta(days=29) < expires_at - timezone.now() <= timedelta(days=30)

    def test_list_and_revoke(self, account: Account) -> None:
        made = printed_json("keys", "create", "research")
        assert made["key"] not in output("keys", "list")
        assert [key["status"] for key in printed_json("keys", "list")] == ["active"]
        assert made["prefix"] in output("keys", "revoke", made["prefix"])
        assert "already" in output("keys", "revoke", made["prefix"])
        listed = printed_json("keys", "list", "--account", "research")
        assert [key["status"] for key in listed] == ["revoked"]
        assert printed_json("keys", "list", "--account", "shared") == []

    def test_caps_and_what_remains_of_them_are_listed(self, account: Account) -> None:
        words = ("--cap-usd=2", "--window=day", "--rpm=60", "--tpm=10000", "--max-concurrent=4")
        made = printed_json("keys", "create", "research", *words)
        Budget.objects.filter(key=made["prefix"]).update(spent=500_000, reserved=250_000)
        Budget.objects.create(account=account, unit="tokens", cap=1000, spent=900)
        later_s = int(timezone.now().timestamp()) + 3600
        Budget.objects.filter(key=made["prefix"]).update(window_ends_unix_s=later_s)
        limits = "60 requests and 10,000 tokens a minute, 4 at once"
        for listing in (output("keys", "list"), output("accounts", "show", "research")):
            words_of_it = " ".join(listing.split())
            assert "$1.25 of $2.00 per day" in words_of_it
            assert limits in words_of_it
        assert "100 of 1,000 tokens" in " ".join(output("accounts", "list").split())
        (key,) = printed_json("keys", "list")
        (budget,) = key["budgets"]
        assert (budget["spent"], budget["reserved"], budget["left"]) == (
            500_000,
            250_000,
            1_250_000,
        )
        shown = printed_json("accounts", "show", "research")
        assert [one["left"] for one in shown["key_budgets"]] == [1_250_000]

    def test_a_whole_key_is_never_repeated(self, account: Account) -> None:
        whole = keys.make_key().key
        assert whole not in refused("keys", "revoke", whole, code=3)
        made = output("keys", "create", "research").strip()
        assert made not in output("keys", "revoke", made)
        assert ApiKey.objects.get().revoked_at is not None

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--scopes", "all"], "scopes: 'all' is none of inference"),
            (["--models", "nothing"], "models: There is no model named 'nothing'"),
            (["--cap-tokens", "0"], "cap: 0 is less than 1"),
            (["--cap-usd", "0.0000001"], "six decimals"),
            (["--cap-usd", "ten"], "not an amount"),
            (["--window", "day"], "window: A window needs --cap-tokens"),
            (["--cap-tokens", "5", "--window", "year"], "none of balance, day, month"),
            (["--cap-tokens", "5", "--window", "0"], "window_s: 0 is less than 1"),
            (["--expires", "soon"], "neither a duration"),
            (["--expires", "2001-01-01"], "expired already"),
            (["--rpm", "0"], "requests_per_minute"),
        ],
    )
    def test_refused(self, account: Account, words: list[str], message: str) -> None:
        assert message in refused("keys", "create", "research", *words)
        assert not ApiKey.objects.exists()

    def test_change_is_refused_where_the_key_would_have_expired(self, account: Account) -> None:
        prefix = printed_json("keys", "create", "research", "--expires", "1d")["prefix"]
        words = ("keys", "change", prefix, "--expires", "2001-01-01")
        assert "revoke it to end it now" in refused(*words)
        ApiKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
        output("keys", "change", prefix, "--name", "renamed")
        assert ApiKey.objects.get().name == "renamed"
        text = output("keys", "list")
        assert "expires_at" in text and "expired" in text
        Account.objects.update(enabled=False)
        assert "disabled" in output("keys", "list", "--status", "disabled")
        assert "renamed" not in output("keys", "list", "--status", "active,expired")

    def test_an_account_that_is_not_there(self) -> None:
        assert "manage.py accounts create" in refused("keys", "create", "nobody", code=3)

    def test_a_key_that_no_gateway_could_check(self, account: Account, settings: Any) -> None:
        settings.CONFIG = replace(settings.CONFIG, secret_key_is_kept=False)
        assert "HELEXA_SECRET_KEY" in refused("keys", "create", "research")
        assert not ApiKey.objects.exists()

    def test_a_database_that_is_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_args: object, **_options: object) -> None:
            raise OperationalError("no such table: metering_account\nand a trace")

        monkeypatch.setattr("metering.selectors.account_find", fail)
        message = refused("keys", "create", "research", code=6)
        assert "no such table: metering_account. Has it been set up" in message
        assert "DATABASE_URL and HELEXA_DATA_DIR name it" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)),
        ("12h", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2w", datetime(2026, 1, 15, tzinfo=UTC)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T10:00:00+02:00", datetime(2027, 1, 31, 8, tzinfo=UTC)),
    ],
)
def test_expiry(text: str, expected: datetime) -> None:
    assert expiry(text, now=datetime(2026, 1, 1, tzinfo=UTC)) == expected
