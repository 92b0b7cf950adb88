"""Commands of accounts, members, keys, budgets and usage: what they print, and how they fail."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from fleet.nouns import expiry
from helexa_site.management.base import ExitCode
from metering import api_keys as keys
from metering.audit import COMMAND
from metering.models import Account, ApiKey, AuditEntry, Budget, UsageHour
from tests.cases import each_case
from tests.metering.commands.command_output import output, printed_json, refused

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("kept_secret_key")]


def test_accounts_from_first_to_last(account: Account) -> None:
    text = output("accounts", "create", "ops", "--weight", "3", "--rpm", "60")
    assert "manage.py keys create ops" in text
    listed = {row["name"]: row for row in printed_json("accounts", "list")}
    assert listed.keys() == {"anonymous", "ops", "research", "shared"}
    assert (listed["ops"]["weight"], listed["ops"]["requests_per_minute"]) == (3, 60)
    assert "research" in output("accounts", "list")
    output("keys", "create", "ops")
    assert printed_json("accounts", "show", "ops")["keys"] == 1
    made = AuditEntry.objects.get(action="account.create", object_id="ops")
    assert made.actor == str(COMMAND)
    output("accounts", "change", "research", "--weight", "4", "--rpm", "9", "--enabled=false")
    output("accounts", "change", "research", "--rpm", "none")
    (row,) = printed_json("accounts", "list", "--enabled", "false")
    assert (row["name"], row["weight"], row["requests_per_minute"]) == ("research", 4, None)
    would = output("accounts", "remove", "research", "--dry-run")
    assert "would account.delete research" in would
    assert Account.objects.filter(name="research").exists()
    assert "Removed" in output("accounts", "remove", "research")


def test_members_and_budgets_from_first_to_last(account: Account) -> None:
    User.objects.create_user("alice")
    output("members", "add", "research", "alice", "--role", "viewer")
    output("members", "change", "research/alice", "--role", "owner")
    (row,) = printed_json("members", "list", "--account", "research")
    assert (row["user"], row["role"]) == ("alice", "owner")
    assert "alice" in output("accounts", "show", "research")
    assert "would membership.remove" in output("members", "remove", row["id"], "--dry-run")
    output("members", "remove", row["id"])
    assert "not in the account" in refused("members", "show", row["id"], code=3)
    made = printed_json("budgets", "add", "--account=research", "--cap-usd=5", "--window=day")
    name = str(made["id"])
    output("budgets", "change", name, "--cap", "6.5", "--window", "3600")
    (row,) = printed_json("budgets", "list", "--account", "research")
    assert (row["cap"], row["window"], row["window_s"]) == (6_500_000, "seconds", 3600)
    for words in (("budgets", "list"), ("accounts", "list"), ("accounts", "show", "research")):
        assert "$6.50" in output(*words)
    assert "would budget.remove" in output("budgets", "remove", name, "--dry-run")
    output("budgets", "remove", name)
    assert "no budget" in refused("budgets", "show", name, code=3)


@each_case(
    ("words", "reason", "code"),
    [
        ("accounts create research", "already", ExitCode.REFUSED),
        ("accounts show nobody", "no account named 'nobody'", ExitCode.NOT_FOUND),
        ("accounts remove shared", "built in", ExitCode.REFUSED),
        ("accounts change shared", "--weight", ExitCode.USAGE),
        ("accounts change shared --enabled=maybe", "true nor false", ExitCode.REFUSED),
        ("budgets add --account=research", "one of --cap-tokens", ExitCode.REFUSED),
        ("budgets change 1", "give --cap or --window", ExitCode.USAGE),
        ("keys create nobody", "manage.py accounts create", ExitCode.NOT_FOUND),
        ("usage --from=yesterday", "not a date", ExitCode.REFUSED),
        ("usage --from=2026-01-03 --to=2026-01-02", "comes after", ExitCode.REFUSED),
        ("usage --account=nobody", "no account", ExitCode.NOT_FOUND),
        ("usage --by=week", "invalid choice", ExitCode.REFUSED),
        # An id that no row can have is not found.
        ("budgets show tight", "no budget 'tight': give its id, a number", ExitCode.NOT_FOUND),
        ("jobs cancel 7", "no job '7': give its id, as jobs list has it", ExitCode.NOT_FOUND),
        ("downloads show x", "no download 'x': give its id", ExitCode.NOT_FOUND),
        ("members show ada", "no member 'ada': give its id, ACCOUNT/USER", ExitCode.NOT_FOUND),
        *(
            (f"keys create research {words}", reason, ExitCode.REFUSED)
            for words, reason in (
                ("--scopes all", "scopes: 'all' is none of inference"),
                ("--models nothing", "models: There is no model named 'nothing'"),
                ("--cap-usd 0.0000001", "six decimals"),
                ("--window day", "window: A window needs --cap-tokens"),
                ("--cap-tokens 5 --window year", "none of balance, day, month"),
                ("--expires soon", "neither a duration"),
                ("--expires 2001-01-01", "expired already"),
            )
        ),
    ],
)
def test_refused(account: Account, words: str, reason: str, code: int) -> None:
    assert reason in refused(*words.split(), code=code)
    assert not ApiKey.objects.exists()


def test_usage_by_groups_for_people_and_as_csv(account: Account) -> None:
    for hour, owner, model, requests, cost in (
        (datetime(2026, 1, 1, 23, tzinfo=UTC), "research", "tiny", 1, 5),
        (datetime(2026, 1, 2, 0, tzinfo=UTC), "research", "tiny", 2, 7),
        (datetime(2026, 1, 2, 23, tzinfo=UTC), "research", "large", 4, 1_000_000),
        (datetime(2026, 1, 3, 0, tzinfo=UTC), "research", "large", 8, 9),
        (datetime(2026, 1, 2, 5, tzinfo=UTC), "shared", "tiny", 100, 0),
    ):
        whose = {"account": owner, "key": "hx-0123456789" if owner == "research" else ""}
        sums = {"requests": requests, "cost_micro_usd": cost}
        UsageHour.objects.create(hour=hour, model=model, **whose, **sums)
    period = ("--from=2026-01-01", "--to=2026-01-02")
    for by, rows in (
        ("day", [("2026-01-01", 1), ("2026-01-02", 106)]),
        ("model", [("large", 4), ("tiny", 103)]),  # dearest first
        ("key", [("hx-0123456789", 7), ("", 100)]),
        ("account", [("research", 7), ("shared", 100)]),
    ):
        shown = printed_json("usage", f"--by={by}", *period)
        assert [(row[by], row["requests"]) for row in shown["data"]] == rows
        assert shown["total"]["requests"] == 107
    total = printed_json("usage", "--account=research", *period)["total"]
    assert (total["requests"], total["cost_micro_usd"]) == (7, 1_000_012)
    text = output("usage", "--by=key", *period)
    for words in ("From 2026-01-01 to 2026-01-02", "$1.000012", "(no key)", "total"):
        assert words in text
    rows = list(csv.DictReader(io.StringIO(output("usage", "--csv", *period))))
    assert [(row["day"], row["requests"], row["cost_micro_usd"]) for row in rows] == [
        ("2026-01-01", "1", "5"),
        ("2026-01-02", "106", "1000007"),
    ]


def test_a_key_that_was_chosen_elsewhere(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(word: str, *words: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{word}\n"))
        return output("keys", "import", "research", "--key", "-", *words)

    text = imported("sk-team-0123456789", "--scopes", "accounts:read", "--name", "old")
    row = ApiKey.objects.get()
    assert row.prefix.startswith("im-") and row.prefix in text and "sk-team" not in text
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


def test_a_new_key_alone_is_printed_and_never_again(account: Account) -> None:
    key = output("keys", "create", "research").strip()
    row = ApiKey.objects.get()
    assert keys.prefix_of(key) == row.prefix
    assert (row.scopes, row.created_by) == (["inference", "usage:read"], str(COMMAND))
    printed = output("keys", "list") + output("keys", "revoke", key)
    assert row.prefix in printed and key not in printed
    listed = printed_json("keys", "list", "--account", "research")
    assert [one["status"] for one in listed] == ["revoked"]
    assert printed_json("keys", "list", "--account", "shared") == []
    unknown = keys.make_key().key
    assert unknown not in refused("keys", "revoke", unknown, code=3)


def test_everything_of_a_key_that_can_be_set_and_changed(account: Account) -> None:
    words = ("--name=ci", "--scopes=inference,fleet:read", "--expires=30d", "--cap-usd=0.1")
    limits = ("--cap-tokens=1000", "--window=3600", "--rpm=5", "--tpm=100")
    made = printed_json("keys", "create", "research", *words, *limits)
    prefix, change = made["prefix"], ("keys", "change", made["prefix"])
    assert keys.prefix_of(made["key"]) == prefix
    assert made["scopes"] == ["inference", "fleet:read"]
    assert (made["requests_per_minute"], made["tokens_per_minute"]) == (5, 100)
    caps = [(one["unit"], one["cap"], one["window_s"]) for one in made["budgets"]]
    assert caps == [("tokens", 1000, 3600), ("micro_usd", 100_000, 3600)]
    expires_at = datetime.fromisoformat(made["expires_at"])
    assert timedelta(days=29) < expires_at - timezone.now() <= timedelta(days=30)
    ends = {"window_ends_unix_s": int(timezone.now().timestamp()) + 3600}
    Budget.objects.filter(unit="micro_usd").update(spent=50_000, reserved=25_000, **ends)
    Budget.objects.create(account=account, unit="tokens", cap=1000, spent=900)
    for words in (("keys", "list"), ("accounts", "show", "research")):
        listed = " ".join(output(*words).split())
        assert "$0.025 of $0.10 per 3,600 s" in listed
        assert "5 requests and 100 tokens a minute" in listed
    assert "100 of 1,000 tokens" in " ".join(output("accounts", "list").split())
    shown = printed_json("accounts", "show", "research")
    assert [one["left"] for one in shown["key_budgets"]] == [1000, 25_000]

    assert "revoke it to end it now" in refused(*change, "--expires", "2001-01-01")
    output(*change, "--name", "renamed", "--expires", "never", "--rpm", "7")
    switches = ("--names-end-user", "true", "--may-leave-network", "false")
    output(*change, *switches, "--capture-until", "2h")
    shown = printed_json("keys", "show", prefix)
    assert (shown["name"], shown["expires_at"]) == ("renamed", None)
    assert (shown["requests_per_minute"], shown["names_end_user"]) == (7, True)
    assert shown["may_leave_network"] is False and shown["capture_until"] is not None
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(days=1))
    output(*change, "--name", "renamed again")  # although it has expired
    assert "expired" in output("keys", "list")
    Account.objects.update(enabled=False)
    assert "disabled" in output("keys", "list", "--status", "disabled")
    assert "renamed" not in output("keys", "list", "--status", "active,expired")
    assert "would key.revoke" in output("keys", "revoke", prefix, "--dry-run")
    for words in ("Revoked", "already"):
        assert words in output("keys", "revoke", prefix)
    assert "was revoked" in refused(*change, "--name", "x", code=4)


def test_where_no_key_can_be_made(
    account: Account, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise OperationalError("no such table: metering_account\nand a trace")

    with monkeypatch.context() as patch:
        patch.setattr("metering.selectors.account_find", fail)
        message = refused("keys", "create", "research", code=6)
    assert "no such table: metering_account. Has it been set up" in message
    assert "DATABASE_URL and HELEXA_DATA_DIR name it" in message
    settings.CONFIG = replace(settings.CONFIG, secret_key_is_kept=False)
    assert "HELEXA_SECRET_KEY" in refused("keys", "create", "research")  # none could check it
    assert not ApiKey.objects.exists()


def test_expiry() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for text, expected in (
        ("90s", now + timedelta(seconds=90)),
        ("12h", now + timedelta(hours=12)),
        ("2w", now + timedelta(days=14)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T10:00:00+02:00", datetime(2027, 1, 31, 8, tzinfo=UTC)),
    ):
        assert expiry(text, now=now) == expected
