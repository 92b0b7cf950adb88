"""The caps of ``keys add`` and ``budgets add``, as the REST API takes them."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from metering.errors import MeteringValueError
from metering.models import Budget
from metering.money import micro_usd_of

CALENDAR_WINDOWS = (Budget.Window.BALANCE, Budget.Window.DAY, Budget.Window.MONTH)
WINDOW_HELP = "balance (default), day, month or a number of seconds"


def add_cap_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--cap-tokens", type=int, metavar="N", help="hard cap in tokens")
    parser.add_argument("--cap-usd", type=micro_usd, metavar="X", help="hard cap in US dollars")
    parser.add_argument("--window", metavar="WINDOW", help=f"of the caps: {WINDOW_HELP}")


def micro_usd(text: str) -> int:
    """Never through a float."""
    try:
        return micro_usd_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def caps(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the caps of ``--cap-tokens`` and ``--cap-usd``, which share the ``--window``. Raises
    ``MeteringValueError``."""
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
