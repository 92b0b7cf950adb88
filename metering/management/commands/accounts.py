"""``manage.py accounts``."""

from __future__ import annotations

from fleet.management.backend import rows_of
from fleet.management.rows import (
    AddRow,
    ChangeRow,
    Columns,
    ListRows,
    RemoveRow,
    Row,
    Run,
    ShowRow,
    SubcommandsCommand,
    cells,
)
from helexa_site.program import program
from metering.management.caps import OF_AN_OWNER, caps_text, limits_text
from metering.nouns import ACCOUNTS, KEYS

LISTED: Columns = {
    **cells("name", "enabled", "weight", "keys", "people", "description"),
    "limits": limits_text,
    "left": lambda row: caps_text(row["budgets"]),
}
KEYS_OF_ONE: Columns = {
    "key": lambda row: row["prefix"],
    **cells("name", "status"),
    "limits": limits_text,
    "left": lambda row: caps_text(row["budgets"]),
}


class ShowAccount(ShowRow):
    """Shows an account with its keys, and the amounts left of their caps."""

    def row(self, run: Run) -> Row:
        row = super().row(run)
        keys = rows_of(run.backend, f"{KEYS.path}?account={row['name']}")
        budgets = [budget for key in keys for budget in key["budgets"]]
        return row | {"key_budgets": budgets, "api_keys": keys}


class AddAccount(AddRow):
    def show(self, run: Run, row: Row) -> None:
        made = f"Made the account {row['name']}."
        run.show(row, f"{made}\nA key for it: {program()} keys create {row['name']}")


class Command(SubcommandsCommand):
    help = f"Accounts: who pays. Their keys: {program()} keys; their caps: {program()} budgets."
    subcommands = (
        ListRows(ACCOUNTS, "all accounts, with the rest of their caps", columns=LISTED),
        ShowAccount(
            ACCOUNTS,
            "an account, its people, budgets and keys",
            tables={
                "members": cells("user", "role"),
                "budgets": OF_AN_OWNER,
                "api_keys": KEYS_OF_ONE,
            },
            hidden=("key_budgets",),
        ),
        AddAccount(ACCOUNTS, "make an account", positional=("name",), aliases=("create",)),
        ChangeRow(ACCOUNTS, "change an account; a disabled one's keys are refused"),
        RemoveRow(ACCOUNTS, "remove an account that never had a key"),
    )
