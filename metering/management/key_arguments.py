"""What ``keys create`` is told on its command line, as the services take it."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import Any

from metering.errors import MeteringValueError
from metering.models import Budget
from metering.money import micro_usd_of
from metering.services import Cap

DURATION = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
CALENDAR_WINDOWS = (Budget.Window.BALANCE, Budget.Window.DAY, Budget.Window.MONTH)


def words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def micro_usd(text: str) -> int:
    """Never through a float."""
    try:
        return micro_usd_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def expiry(text: str, *, now: datetime | None = None) -> datetime:
    """``30d``, ``12h``, or a date or moment in UTC."""
    now = now or datetime.now(UTC)
    try:
        if match := DURATION.fullmatch(text):
            return now + timedelta(**{UNITS[match[2]]: int(match[1])})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is neither a duration, as in 30d or 12h, nor a date, as in 2027-01-31"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def caps(options: dict[str, Any]) -> list[Cap]:
    """Of ``--cap-tokens`` and ``--cap-usd``, which share the ``--window``. Raises
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
    window, window_s = _window(word or Budget.Window.BALANCE.value)
    return [Cap(unit=unit, cap=cap, window=window, window_s=window_s) for unit, cap in given]


def _window(word: str) -> tuple[str, int | None]:
    if word in CALENDAR_WINDOWS:
        return word, None
    if not (word.isascii() and word.isdigit()):
        raise MeteringValueError(
            "window", f"{word!r} is none of balance, day, month and a number of seconds"
        )
    return Budget.Window.SECONDS.value, int(word)
