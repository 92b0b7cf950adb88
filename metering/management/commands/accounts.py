"""``manage.py accounts``."""

from __future__ import annotations

from fleet.management import verbs
from helexa_site.program import program
from metering.management.commands.budgets import LIMITS_AND_LEFT, OF_AN_OWNER
from metering.nouns import ACCOUNTS, KEYS

LISTED: verbs.Columns = {
    **verbs.cells("name", "enabled", "weight", "keys", "people", "description"),
    **LIMITS_AND_LEFT,
}
KEYS_OF_ONE: verbs.Columns = {
    "key": lambda row: row["prefix"],
    **verbs.cells("name", "status"),
    **LIMITS_AND_LEFT,
}


class ShowAccount(verbs.Show):
    def row(self, run: verbs.Run) -> verbs.Row:
        row = super().row(run)
        keys = run.rows(f"{KEYS.path}?account={row['name']}")
        budgets = [budget for key in keys for budget in key["budgets"]]
        return row | {"key_budgets": budgets, "api_keys": keys}


class Command(verbs.Command):
    help = f"Accounts: who pays. Their keys: {program()} keys; their caps: {program()} budgets."
    subcommands = (
        verbs.List(ACCOUNTS, "all accounts, with the rest of their caps", columns=LISTED),
        ShowAccount(
            ACCOUNTS,
            "an account, its people, budgets and keys",
            tables={
                "members": verbs.cells("user", "role"),
                "budgets": OF_AN_OWNER,
                "api_keys": KEYS_OF_ONE,
            },
            hidden=("key_budgets",),
        ),
        verbs.Add(
            ACCOUNTS,
            "make an account",
            positional=("name",),
            aliases=("create",),
            done=f"Made the account {{id}}.\nA key for it: {program()} keys create {{id}}",
        ),
        verbs.Change(ACCOUNTS, "change an account; a disabled one's keys are refused"),
        verbs.Remove(ACCOUNTS, "remove an account that never had a key"),
    )
