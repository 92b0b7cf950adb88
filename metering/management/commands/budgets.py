"""``manage.py budgets``: hard caps."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace

from django.core.management.base import CommandError

from fleet.management import verbs
from helexa_site.management.base import ExitCode
from metering.errors import MeteringValueError
from metering.management.caps import AMOUNTS, WINDOW_HELP, add_cap_arguments, caps, window_of
from metering.money import cap_of
from metering.nouns import BUDGETS

OF_OWNERS = replace(
    BUDGETS, fields=tuple(one for one in BUDGETS.fields if one.name in ("account", "key"))
)
LISTED: verbs.Columns = {
    "id": lambda row: row["id"],
    "on": lambda row: f"{row['on']} {row['owner']}",
    **AMOUNTS,
}


def one_cap(run: verbs.Run) -> verbs.Row:
    """Raises ``MeteringValueError``."""
    given = caps(run.options)
    if len(given) != 1:
        raise MeteringValueError("cap", "Give one of --cap-tokens and --cap-usd")
    return given[0]


class ChangeBudget(verbs.Change):
    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("--cap", metavar="AMOUNT", help="in tokens or dollars, as it is in")
        parser.add_argument("--window", metavar="WINDOW", help=WINDOW_HELP)

    def run(self, run: verbs.Run) -> None:
        """Raises ``MeteringValueError``."""
        cap, window = run.options["cap"], run.options["window"]
        if cap is None and window is None:
            raise CommandError("give --cap or --window", returncode=ExitCode.USAGE)
        body = {} if window is None else window_of(window)
        if cap is not None:
            unit = run.ask("GET", self.path(run))["unit"]
            body["cap"] = _cap(unit, cap)
        self.change(run, body)


def _cap(unit: str, word: str) -> int:
    try:
        return cap_of(unit, word.replace(",", ""))
    except ValueError as error:
        raise MeteringValueError("cap", str(error)) from None


class Command(verbs.Command):
    help = "Budgets: hard caps on accounts and keys, in tokens or US dollars."
    subcommands = (
        verbs.List(BUDGETS, "all hard caps, as they stand now", columns=LISTED),
        verbs.Show(BUDGETS, "one budget"),
        verbs.Add(OF_OWNERS, "cap an account or a key", arguments=add_cap_arguments, body=one_cap),
        ChangeBudget(BUDGETS, "change a cap or its window; a higher cap tops it up"),
        verbs.Remove(BUDGETS, "remove a cap, with the reservations on it"),
    )
