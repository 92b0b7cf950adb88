"""The commands of accounts, members and budgets: what they print, and how they fail."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError

from helexa_site.exit_codes import ExitCode
from metering.actor import COMMAND
from metering.models import Account, AuditEntry, Budget
from tests.metering.commands.command_output import output, printed_json, refused

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("kept_secret_key")]


class TestAccounts:
    def test_create_list_and_show(self, account: Account) -> None:
        text = output("accounts", "create", "ops", "--weight", "3", "--rpm", "60")
        assert "manage.py keys create ops" in text
        listed = {row["name"]: row for row in printed_json("accounts", "list")}
        assert listed.keys() == {"anonymous", "ops", "research", "shared"}
        assert (listed["ops"]["weight"], listed["ops"]["requests_per_minute"]) == (3, 60)
        assert "research" in output("accounts", "list")
        output("keys", "create", "ops")
        assert printed_json("accounts", "show", "ops")["keys"] == 1
        Budget.objects.create(account_id="ops", unit="micro_usd", cap=12_300, spent=300)
        assert "$0.0123" in output("accounts", "show", "ops")
        made = AuditEntry.objects.get(action="account.create", object_id="ops")
        assert made.actor == str(COMMAND)

    def test_refused(self, account: Account) -> None:
        assert "already" in refused("accounts", "create", "research")
        assert "lower-case slug" in refused("accounts", "create", "No Slug")
        assert "no account named 'nobody'" in refused("accounts", "show", "nobody", code=3)
        assert "weight" in refused("accounts", "create", "ops", "--weight", "0")
        with pytest.raises(CommandError):
            output("accounts")

    def test_change_and_remove(self, account: Account) -> None:
        output("accounts", "change", "research", "--weight", "4", "--rpm", "9", "--enabled=false")
        output("accounts", "change", "research", "--rpm", "none")
        (row,) = printed_json("accounts", "list", "--enabled", "false")
        assert (row["name"], row["weight"], row["requests_per_minute"]) == ("research", 4, None)
        assert "would account.delete research" in output(
            "accounts", "remove", "research", "--dry-run"
        )
        assert Account.objects.filter(name="research").exists()
        assert "Removed" in output("accounts", "remove", "research")
        assert "built in" in refused("accounts", "remove", "shared")
        assert "--weight" in refused("accounts", "change", "shared", code=ExitCode.USAGE)
        assert "true nor false" in refused("accounts", "change", "shared", "--enabled=maybe")


class TestMembers:
    def test_from_first_to_last(self, account: Account) -> None:
        User.objects.create_user("alice")
        output("members", "add", "research", "alice", "--role", "viewer")
        output("members", "change", "research/alice", "--role", "owner")
        (row,) = printed_json("members", "list", "--account", "research")
        assert (row["user"], row["role"]) == ("alice", "owner")
        assert "alice" in output("accounts", "show", "research")
        assert "would membership.remove" in output("members", "remove", row["id"], "--dry-run")
        output("members", "remove", row["id"])
        assert "not in the account" in refused("members", "show", row["id"], code=3)


class TestBudgets:
    def test_from_first_to_last(self, account: Account) -> None:
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
        assert "one of --cap-tokens" in refused("budgets", "add", "--account=research")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("budgets show tight", "There is no budget 'tight': give its id, a number"),
        ("budgets remove tight", "There is no budget 'tight': give its id, a number"),
        ("jobs cancel 7", "There is no job '7': give its id, as jobs list has it"),
        ("downloads show x", "There is no download 'x': give its id, as downloads list has it"),
        ("members show ada", "There is no member 'ada': give its id, ACCOUNT/USER"),
    ],
)
def test_an_id_that_no_row_can_have_is_not_found(words: str, reason: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command(*words.split())
    assert str(refused.value).startswith(reason)
    assert refused.value.returncode == ExitCode.NOT_FOUND
