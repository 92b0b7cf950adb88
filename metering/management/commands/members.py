"""``manage.py members``: people in accounts."""

from __future__ import annotations

from fleet.management.rows import (
    AddRow,
    ChangeRow,
    ListRows,
    RemoveRow,
    ShowRow,
    SubcommandsCommand,
    cells,
)
from metering.nouns import MEMBERS


class Command(SubcommandsCommand):
    help = "Members: people in accounts, as owner, member or viewer."
    subcommands = (
        ListRows(MEMBERS, "people in accounts", columns=cells("account", "user", "role")),
        ShowRow(MEMBERS, "one person's role in an account"),
        AddRow(MEMBERS, "add a user to an account", positional=("account", "user")),
        ChangeRow(MEMBERS, "give a member another role"),
        RemoveRow(MEMBERS, "remove a member from an account"),
    )
