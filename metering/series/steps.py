"""Steps of time: how finely figures are kept, and how finely a range is shown. Pure.

Each request is in one row of each of its subjects: in a fine one while it is new, later in the
coarse one that took the fine one's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MINUTE_S, QUARTER_S, HOUR_S, DAY_S = 60, 900, 3_600, 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Rows of ``step_s`` are kept until they are ``kept_s`` old."""

    step_s: int
    kept_s: int


TIERS = (
    Tier(step_s=MINUTE_S, kept_s=6 * HOUR_S),
    Tier(step_s=QUARTER_S, kept_s=3 * DAY_S),
    Tier(step_s=HOUR_S, kept_s=30 * DAY_S),
)
"""The finest first. What leaves the last one is forgotten."""
KEPT_S = TIERS[-1].kept_s


def floor_s(unix_s: float, step_s: int) -> int:
    """The beginning of the step in which ``unix_s`` lies."""
    return int(unix_s // step_s) * step_s


def moment(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)


def boundary_s(now_unix_s: float, tier: int) -> int:
    """Rows of the tier that begin earlier move on. It is a multiple of the next tier's step, so
    that no coarse row is made of a part of its time."""
    coarse_s = TIERS[tier + 1].step_s if tier + 1 < len(TIERS) else HOUR_S
    return floor_s(now_unix_s - TIERS[tier].kept_s, coarse_s)


def finest_step_s(since_unix_s: float, now_unix_s: float) -> int:
    """The step of the coarsest rows between ``since`` and now."""
    age_s = now_unix_s - since_unix_s
    return next((tier.step_s for tier in TIERS if age_s <= tier.kept_s), TIERS[-1].step_s)


def points_of(since_unix_s: float, until_unix_s: float, step_s: int) -> list[int]:
    """The beginnings of all steps from that of ``since`` to that of ``until``."""
    first, last = floor_s(since_unix_s, step_s), floor_s(until_unix_s, step_s)
    return list(range(first, last + 1, step_s))


def length_words(length_s: int) -> str:
    """``5 minutes``, ``1 hour``."""
    words = (("day", DAY_S), ("hour", HOUR_S), ("minute", MINUTE_S))
    unit, seconds = next((unit, one) for unit, one in words if length_s % one == 0)
    number = timedelta(seconds=length_s) // timedelta(seconds=seconds)
    return f"{number} {unit}{'s' * (number != 1)}"
