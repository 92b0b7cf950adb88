"""The subcommands of ``manage.py accounts`` and ``manage.py members``."""

from __future__ import annotations

from fleet.management.backend import rows_of
from fleet.management.rows import (
    AddRow,
    ChangeRow,
    Columns,
    ListRows,
    RemoveRow,
    Row,
    ShowRow,
    cells,
)
from fleet.management.subcommands import Run
from helexa_site.program import program
from metering.management.budget_commands import OF_AN_OWNER, caps_text
from metering.management.output import limits_text
from metering.nouns import ACCOUNTS, KEYS, MEMBERS

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


ACCOUNT_COMMANDS = (
    ListRows(noun=ACCOUNTS, columns=LISTED, help="all accounts, with the rest of their caps"),
    ShowAccount(
        noun=ACCOUNTS,
        help="an account, its people, budgets and keys",
        tables={
            "members": cells("user", "role"),
            "budgets": OF_AN_OWNER,
            "api_keys": KEYS_OF_ONE,
        },
        hidden=("key_budgets",),
    ),
    AddAccount(noun=ACCOUNTS, help="make an account", positional=("name",), aliases=("create",)),
    ChangeRow(noun=ACCOUNTS, help="change an account; a disabled one's keys are refused"),
    RemoveRow(noun=ACCOUNTS, help="remove an account that never had a key"),
)
MEMBER_COMMANDS = (
    ListRows(noun=MEMBERS, columns=cells("account", "user", "role"), help="people in accounts"),
    ShowRow(noun=MEMBERS, help="one person's role in an account"),
    AddRow(
        noun=MEMBERS,
        help="add a user to an account",
        positional=("account", "user"),
    ),
    ChangeRow(noun=MEMBERS, help="give a member another role"),
    RemoveRow(noun=MEMBERS, help="remove a member from an account"),
)
