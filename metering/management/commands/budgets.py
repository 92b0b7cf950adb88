"""``manage.py budgets``: hard caps. ``keys`` and ``accounts`` use its arguments and texts."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from django.core.management.base import CommandError

from fleet.management import verbs
from helexa_site.management.base import ExitCode
from metering.errors import MeteringValueError
from metering.models import Budget
from metering.money import amount_words, cap_of, micro_usd_of
from metering.nouns import BUDGETS
from metering.selectors import BudgetStatus, left_words

CALENDAR_WINDOWS = (Budget.Window.BALANCE, Budget.Window.DAY, Budget.Window.MONTH)
WINDOW_HELP = "balance (default), day, month or a number of seconds"


def add_cap_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--cap-tokens", type=int, metavar="N", help="hard cap in tokens")
    parser.add_argument("--cap-usd", type=micro_usd, metavar="X", help="hard cap in US dollars")
    parser.add_argument("--window", metavar="WINDOW", help=f"of the caps: {WINDOW_HELP}")


def micro_usd(text: str) -> int:
    """Never uses a float."""
    try:
        return micro_usd_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def caps(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Raises ``MeteringValueError``."""
    asked = [
        (Budget.Unit.TOKENS, options["cap_tokens"]),
        (Budget.Unit.MICRO_USD, options["cap_usd"]),
    ]
    given = [(unit.value, cap) for unit, cap in asked if cap is not None]
    word = options["window"]
    if not given:
        if word is not None:
            raise MeteringValueError("window", "A window needs --cap-tokens or --cap-usd")
        return []
    window = window_of(word or Budget.Window.BALANCE.value)
    return [{"unit": unit, "cap": cap, **window} for unit, cap in given]


def window_of(word: str) -> dict[str, Any]:
    """Raises ``MeteringValueError``."""
    if word in CALENDAR_WINDOWS:
        return {"window": word, "window_s": None}
    if not (word.isascii() and word.isdigit()):
        raise MeteringValueError(
            "window", f"{word!r} is none of balance, day, month and a number of seconds"
        )
    return {"window": Budget.Window.SECONDS.value, "window_s": int(word)}


def window_text(budget: verbs.Row) -> str:
    return budget["window"] if budget["window_s"] is None else f"{budget['window_s']} s"


def caps_text(budgets: list[verbs.Row]) -> str:
    names = [one.name for one in fields(BudgetStatus)]
    return left_words(BudgetStatus(**{name: row[name] for name in names}) for row in budgets)


def limits_text(row: Mapping[str, Any]) -> str:
    """``60 requests and 10,000 tokens a minute, 4 at once``."""
    rates = [
        f"{row[name]:,} {noun}"
        for name, noun in (("requests_per_minute", "requests"), ("tokens_per_minute", "tokens"))
        if row[name] is not None
    ]
    limits = [f"{' and '.join(rates)} a minute"] if rates else []
    if (most := row["max_concurrent"]) is not None:
        limits.append(f"{most:,} at once")
    return ", ".join(limits)


AMOUNTS: verbs.Columns = {
    "window": window_text,
    **{
        name: lambda row, name=name: amount_words(row["unit"], row[name])  # type: ignore[misc]
        for name in ("cap", "spent", "reserved", "left")
    },
}
OF_AN_OWNER: verbs.Columns = {"budget": lambda row: row["id"], **AMOUNTS}
LIMITS_AND_LEFT: verbs.Columns = {
    "limits": limits_text,
    "left": lambda row: caps_text(row["budgets"]),
}


OF_OWNERS = replace(
    BUDGETS, fields=tuple(one for one in BUDGETS.fields if one.name in ("account", "key"))
)
LISTED: verbs.Columns = {
    "id": lambda row: row["id"],
    "on": lambda row: f"{row['on']} {row['owner']}",
    **AMOUNTS,
}


def one_cap(run: verbs.Run) -> verbs.Row:
    given = caps(run.options)
    if len(given) != 1:
        raise MeteringValueError("cap", "Give one of --cap-tokens and --cap-usd")
    return given[0]


class ChangeBudget(verbs.Change):
    def add_flags(self, parser: ArgumentParser) -> None:
        parser.add_argument("--cap", metavar="AMOUNT", help="in tokens or dollars, as it is in")
        parser.add_argument("--window", metavar="WINDOW", help=WINDOW_HELP)

    def run(self, run: verbs.Run) -> None:
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
