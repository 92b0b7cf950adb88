"""``manage.py aliases``."""

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
from fleet.nouns import ALIASES


class Command(SubcommandsCommand):
    help = "Aliases: other names of models."
    subcommands = (
        ListRows(ALIASES, "all aliases", columns=cells("name", "model")),
        ShowRow(ALIASES, "one alias"),
        AddRow(ALIASES, "give a model another name", positional=("name", "model")),
        ChangeRow(ALIASES, "point an alias at another model"),
        RemoveRow(ALIASES, "remove an alias"),
    )
