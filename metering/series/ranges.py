"""How far back a series goes and how fine it is, in words of a URL. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from metering.errors import MeteringValueError
from metering.series.kinds import Kind
from metering.series.steps import (
    DAY_S,
    HOUR_S,
    KEPT_S,
    MINUTE_S,
    QUARTER_S,
    finest_step_s,
    floor_s,
    length_words,
)

RANGES = ("30m", "3h", "24h", "7d", "30d")
"""Those that pages offer."""
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
    """Raises ``MeteringValueError``."""
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
