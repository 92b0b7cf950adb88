"""The subcommands of ``manage.py budgets``, and how lists show budgets."""

from __future__ import annotations

import dataclasses
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
    ShowRow,
    add_field_arguments,
    add_id_argument,
    given_fields,
    row_path,
)
from fleet.management.subcommands import Run
from helexa_site.exit_codes import ExitCode
from metering.errors import MeteringValueError
from metering.management.key_arguments import WINDOW_HELP, add_cap_arguments, caps, window_of
from metering.money import amount_words, cap_of
from metering.nouns import BUDGETS
from metering.selectors import BudgetStatus, left_words

OWNERS = tuple(one for one in BUDGETS.fields if one.name in ("account", "key"))


def window_text(budget: Row) -> str:
    return budget["window"] if budget["window_s"] is None else f"{budget['window_s']} s"


def caps_text(budgets: list[Row]) -> str:
    """The amount left of each of them, in words."""
    names = [one.name for one in dataclasses.fields(BudgetStatus)]
    return left_words(BudgetStatus(**{name: row[name] for name in names}) for row in budgets)


AMOUNTS: Columns = {
    "window": window_text,
    **{
        name: lambda row, name=name: amount_words(row["unit"], row[name])  # type: ignore[misc]
        for name in ("cap", "spent", "reserved", "left")
    },
}
OF_AN_OWNER: Columns = {"budget": lambda row: row["id"], **AMOUNTS}
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
            budget = run.backend.ask("GET", row_path(self.noun, run.options["id"]))
            body["cap"] = _cap(budget["unit"], cap)
        return body


def _cap(unit: str, word: str) -> int:
    """Raises ``MeteringValueError``."""
    try:
        return cap_of(unit, word.replace(",", ""))
    except ValueError as error:
        raise MeteringValueError("cap", str(error)) from None


SUBCOMMANDS = (
    ListRows(noun=BUDGETS, columns=LISTED, help="all hard caps, as they stand now"),
    ShowRow(noun=BUDGETS, help="one budget"),
    AddBudget(noun=BUDGETS, help="cap an account or a key"),
    ChangeBudget(noun=BUDGETS, help="change a cap or its window; a higher cap tops it up"),
    RemoveRow(noun=BUDGETS, help="remove a cap, with the reservations on it"),
)
