"""``manage.py budgets``: hard caps."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

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
    add_field_arguments,
    add_id_argument,
    given_fields,
)
from helexa_site.exit_codes import ExitCode
from metering.errors import MeteringValueError
from metering.management.caps import AMOUNTS, WINDOW_HELP, add_cap_arguments, caps, window_of
from metering.money import cap_of
from metering.nouns import BUDGETS

OWNERS = tuple(one for one in BUDGETS.fields if one.name in ("account", "key"))
LISTED: Columns = {
    "id": lambda row: row["id"],
    "on": lambda row: f"{row['on']} {row['owner']}",
    **AMOUNTS,
}


class AddBudget(AddRow):
    def add_arguments(self, parser: ArgumentParser) -> None:
        add_field_arguments(parser, OWNERS)
        add_cap_arguments(parser)

    def body(self, run: Run) -> Row:
        """Raises ``MeteringValueError``."""
        given = caps(run.options)
        if len(given) != 1:
            raise MeteringValueError("cap", "Give one of --cap-tokens and --cap-usd")
        return given_fields(run.options, OWNERS) | given[0]


class ChangeBudget(ChangeRow):
    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)
        parser.add_argument("--cap", metavar="AMOUNT", help="in tokens or dollars, as it is in")
        parser.add_argument("--window", metavar="WINDOW", help=WINDOW_HELP)

    def body(self, run: Run) -> Row:
        """Raises ``CommandError``, ``MeteringValueError``."""
        cap, window = run.options["cap"], run.options["window"]
        if cap is None and window is None:
            raise CommandError("give --cap or --window", returncode=ExitCode.USAGE)
        body: dict[str, Any] = {} if window is None else window_of(window)
        if cap is not None:
            budget = run.backend.ask("GET", self.path(run))
            body["cap"] = _cap(budget["unit"], cap)
        return body


def _cap(unit: str, word: str) -> int:
    try:
        return cap_of(unit, word.replace(",", ""))
    except ValueError as error:
        raise MeteringValueError("cap", str(error)) from None


class Command(SubcommandsCommand):
    help = "Budgets: hard caps on accounts and keys, in tokens or US dollars."
    subcommands = (
        ListRows(BUDGETS, "all hard caps, as they stand now", columns=LISTED),
        ShowRow(BUDGETS, "one budget"),
        AddBudget(BUDGETS, "cap an account or a key"),
        ChangeBudget(BUDGETS, "change a cap or its window; a higher cap tops it up"),
        RemoveRow(BUDGETS, "remove a cap, with the reservations on it"),
    )
