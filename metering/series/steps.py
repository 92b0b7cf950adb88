"""The subjects of series, and the steps in which they are stored and shown. Pure.

Each request is in one row of each of its subjects: first in a fine one, later in the coarse one
that replaces it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from metering.errors import MeteringValueError

FLEET_NAME = ""


class Kind(StrEnum):
    FLEET = "fleet"
    MODEL = "model"
    NEURON = "neuron"
    ACCOUNT = "account"
    DEVICE = "device"


class SeriesKey(NamedTuple):
    """One row: ``at`` is the Unix time at which its step begins. A device's name is
    ``NEURON/cuda:0``."""

    step_s: int
    at_unix_s: int
    kind: Kind
    name: str


MINUTE_S, QUARTER_S, HOUR_S, DAY_S = 60, 900, 3_600, 86_400
TIERS = ((MINUTE_S, 6 * HOUR_S), (QUARTER_S, 3 * DAY_S), (HOUR_S, 30 * DAY_S))
"""The step of rows and how old they become, the finest first. Rows that leave the last tier are
deleted."""
KEPT_S = TIERS[-1][1]


def floor_s(unix_s: float, step_s: int) -> int:
    return int(unix_s // step_s) * step_s


def moment(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)


def boundary_s(now_unix_s: float, tier: int) -> int:
    """Rows of the tier that begin earlier are rolled up. It is a multiple of the next tier's step,
    so that no coarse row has only a part of its time."""
    coarse_s = TIERS[tier + 1][0] if tier + 1 < len(TIERS) else HOUR_S
    return floor_s(now_unix_s - TIERS[tier][1], coarse_s)


def finest_step_s(since_unix_s: float, now_unix_s: float) -> int:
    """The step of the coarsest rows between ``since`` and now."""
    age_s = now_unix_s - since_unix_s
    return next((step_s for step_s, kept_s in TIERS if age_s <= kept_s), HOUR_S)


def length_words(length_s: int) -> str:
    words = (("day", DAY_S), ("hour", HOUR_S), ("minute", MINUTE_S))
    unit, seconds = next((unit, one) for unit, one in words if length_s % one == 0)
    number = length_s // seconds
    return f"{number} {unit}{'s' * (number != 1)}"


RANGES = ("30m", "3h", "24h", "7d", "30d")
DEFAULT_RANGE = "3h"
LENGTH = re.compile(r"([0-9]{1,5})(m|h|d)")
UNIT_S = {"m": MINUTE_S, "h": HOUR_S, "d": DAY_S}
MIN_S = 5 * MINUTE_S
USUAL_STEPS_S = (MINUTE_S, 5 * MINUTE_S, QUARTER_S, HOUR_S, 2 * HOUR_S, 6 * HOUR_S, DAY_S)
USUAL_POINTS = 200
MAX_POINTS = 1_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """``since`` is the beginning of a step; the last point is of the present one."""

    word: str
    since_unix_s: int
    until_unix_s: int
    step_s: int

    @property
    def step_words(self) -> str:
        return length_words(self.step_s)


def kind_of(word: str) -> Kind:
    """Raises ``MeteringValueError``."""
    if word not in [*Kind]:
        raise MeteringValueError("kind", f"{word!r} is none of {', '.join(Kind)}")
    return Kind(word)


def range_of(word: str, step: str, *, now_unix_s: float) -> Range:
    """``word`` as 30m, 24h or 7d; ``step`` in seconds; empty: the usual ones. Raises
    ``MeteringValueError`` naming the parameter."""
    word = word or DEFAULT_RANGE
    length = LENGTH.fullmatch(word)
    length_s = int(length[1]) * UNIT_S[length[2]] if length else 0
    if not MIN_S <= length_s <= KEPT_S:
        raise MeteringValueError(
            "range", f"{word[:20]!r} is not a time from 5m to {KEPT_S // DAY_S}d, as in 24h"
        )
    finest_s = finest_step_s(now_unix_s - length_s, now_unix_s)
    step_s = _step_s(step, length_s, finest_s) if step else _usual_step_s(length_s, finest_s)
    return Range(
        word=word,
        since_unix_s=floor_s(now_unix_s - length_s, step_s) + step_s,
        until_unix_s=int(now_unix_s),
        step_s=step_s,
    )


def _step_s(word: str, length_s: int, finest_s: int) -> int:
    is_number = word.isascii() and word.isdigit() and len(word) < 8
    step_s = int(word) if is_number else 0
    if not step_s or step_s % finest_s or step_s > length_s:
        raise MeteringValueError(
            "step",
            f"{word[:20]!r} is not a step of this range: a multiple of {finest_s} seconds, "
            f"at most {length_s}",
        )
    if length_s // step_s > MAX_POINTS:
        raise MeteringValueError(
            "step", f"that were {length_s // step_s} points: at most {MAX_POINTS}"
        )
    return step_s


def _usual_step_s(length_s: int, finest_s: int) -> int:
    fitting = [one for one in USUAL_STEPS_S if one >= finest_s and length_s <= one * USUAL_POINTS]
    return fitting[0]
