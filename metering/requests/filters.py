"""The filters of requests as words of a URL: the same for the page, the REST API and the command.
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from metering.errors import MeteringValueError
from metering.ledger.entries import Outcome
from metering.selectors import RequestFilter

FILTERS = (
    *("account", "key", "end_user", "model", "neuron", "code"),
    *("outcome", "status", "since", "until", "id"),
)
OUTCOMES = tuple(outcome.value for outcome in Outcome)
AGO = re.compile(r"([0-9]{1,6})(m|h|d)")
UNITS = {"m": "minutes", "h": "hours", "d": "days"}
FIRST_YEAR, END_YEAR = 2000, 9999


def filter_of(words: Mapping[str, str], *, visible: RequestFilter, now: datetime) -> RequestFilter:
    """``visible`` narrowed by the parameters in ``words``; empty ones do not narrow. Raises
    ``MeteringValueError`` naming the parameter."""
    given = {name: words.get(name, "").strip() for name in FILTERS}
    if given["outcome"] and given["outcome"] not in OUTCOMES:
        raise MeteringValueError(
            "outcome", f"{given['outcome']!r} is none of {', '.join(OUTCOMES)}"
        )
    return replace(
        visible,
        account=given["account"],
        key=given["key"],
        end_user=given["end_user"],
        model=given["model"],
        neuron=given["neuron"],
        code=given["code"],
        outcome=given["outcome"],
        status=_status(given["status"]),
        since=_moment("since", given["since"], now),
        until=_moment("until", given["until"], now),
        id_prefix=given["id"],
    )


def _status(word: str) -> int | None:
    if not word:
        return None
    if not (word.isascii() and word.isdigit() and len(word) <= 3):
        raise MeteringValueError("status", f"{word!r} is not an HTTP status, as in 503")
    return int(word)


def _moment(name: str, word: str, now: datetime) -> datetime | None:
    """``2h`` ago, or a date and time in ISO 8601; without a zone it is in UTC."""
    if not word:
        return None
    if ago := AGO.fullmatch(word):
        return now - timedelta(**{UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise MeteringValueError(
            name, f"{word!r} is not a time, as in 2026-01-31T12:00 or 2h (ago)"
        ) from None
    if not FIRST_YEAR <= moment.year < END_YEAR:
        raise MeteringValueError(name, f"{word!r} is out of range")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
