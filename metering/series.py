"""Time series of the fleet, its models, neurons, devices and accounts, for thirty days. Pure.

    gateways' record writers ─┐                        ┌─ series_points ─▶ REST, charts
    the control's samples ────┴─▶ metering_seriesrow ──┴─ rollup: 60 s ─▶ 15 min ─▶ 1 h ─▶ forgotten

Each request is in one row of each of its subjects: first in a fine one, later in the coarse one
that replaces it. A row's figures are named integers that add up, percentiles too:

``requests`` ``answered`` ``refused`` …   counts, and sums of tokens
``error:queue_full``                      a count by code
``total_ms@47``                           a histogram's bucket
``queue_depth+``                          the sum of samples, of which there are ``samples``

A bucket is a tenth wider than the one before:

    bucket    0       1          2              n
    values   [0, 1)  [1, 1.1)   [1.1, 1.21)    [γⁿ⁻¹, γⁿ)

Adding two histograms gives that of all their values, which no average of percentiles does. A
percentile is off by at most ``MAX_ERROR`` of itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from metering.errors import MeteringValueError
from metering.ledger.entries import FINISHED, TOKENS, Outcome, Settle

FLEET_NAME = ""


class Kind(StrEnum):
    FLEET = "fleet"
    MODEL = "model"
    NEURON = "neuron"
    ACCOUNT = "account"
    DEVICE = "device"


class SeriesKey(NamedTuple):
    """``at_unix_s``: when its step begins. A device's name is ``NEURON/cuda:0``."""

    step_s: int
    at_unix_s: int
    kind: Kind
    name: str


MINUTE_S, QUARTER_S, HOUR_S, DAY_S = 60, 900, 3_600, 86_400
TIERS = ((MINUTE_S, 6 * HOUR_S), (QUARTER_S, 3 * DAY_S), (HOUR_S, 30 * DAY_S))
"""The step of rows and how old they become, the finest first; then they are deleted."""
KEPT_S = TIERS[-1][1]


def floor_s(unix_s: float, step_s: int) -> int:
    return int(unix_s // step_s) * step_s


def moment(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)


def boundary_s(now_unix_s: float, tier: int) -> int:
    """A multiple of the next tier's step, so that no coarse row has only a part of its time."""
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
    """``word`` as 24h, ``step`` in seconds; empty: the usual ones. Raises
    ``MeteringValueError``."""
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


ERROR = "error:"
OTHER_CODES = "other"
MAX_CODES = 50
"""The most codes in one row: a neuron may be hostile, and it sends its codes."""
BUCKET = "@"
SUM = "+"

Figures = dict[str, int]


def add(figures: Figures, more: Mapping[str, int]) -> None:
    """Mutates ``figures``. Codes beyond ``MAX_CODES`` count as one."""
    for name, number in more.items():
        if name not in figures and name.startswith(ERROR) and _has_all_codes(figures):
            name = ERROR + OTHER_CODES
        figures[name] = figures.get(name, 0) + number


def _has_all_codes(figures: Figures) -> bool:
    return sum(name.startswith(ERROR) for name in figures) >= MAX_CODES


def merged(parts: Iterable[Mapping[str, int]]) -> Figures:
    total: Figures = {}
    for part in parts:
        add(total, part)
    return total


def in_bucket(name: str, value: float) -> str:
    return f"{name}{BUCKET}{bucket_of(value)}"


def errors_of(figures: Mapping[str, int]) -> dict[str, int]:
    found = {
        name.removeprefix(ERROR): number
        for name, number in figures.items()
        if name.startswith(ERROR)
    }
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def percentile_of(figures: Mapping[str, int], name: str, share: float) -> float | None:
    start = name + BUCKET
    counts = {
        int(one.removeprefix(start)): number
        for one, number in figures.items()
        if one.startswith(start)
    }
    return percentile(counts, share)


def mean_of(figures: Mapping[str, int], name: str, samples: str = "samples") -> float | None:
    num_samples = figures.get(samples, 0)
    return figures.get(name + SUM, 0) / num_samples if num_samples else None


GAMMA = 1.1
LOG_GAMMA = math.log(GAMMA)
MAX_ERROR = math.sqrt(GAMMA) - 1
MAX_VALUE = 2**63 - 1


def bucket_of(value: float) -> int:
    if value < 1:
        return 0
    return 1 + int(math.log(min(value, MAX_VALUE)) / LOG_GAMMA)


def value_of(bucket: int) -> float:
    return 0.0 if bucket <= 0 else math.exp(LOG_GAMMA * (bucket - 0.5))


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The least value that a ``share`` (0 to 1) of them does not exceed."""
    total = sum(counts.values())
    if total <= 0:
        return None
    rank = max(1, math.ceil(share * total))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return value_of(bucket)
    return value_of(max(counts))


OUTCOMES = tuple(outcome.value for outcome in Outcome)
MEDIAN, TAIL = 0.5, 0.95


def point_fields(kind: Kind, figures: Mapping[str, int], step_s: int) -> dict[str, Any]:
    """Percentiles and means are ``None`` where nothing was counted."""
    if kind is Kind.DEVICE:
        return {
            "busy_percent": _rounded(mean_of(figures, "busy_percent", "busy_samples")),
            "memory_used_bytes": _whole(mean_of(figures, "memory_used_bytes")),
            "memory_bytes": _whole(mean_of(figures, "memory_bytes")),
        }
    return {
        "requests": figures.get("requests", 0),
        **{outcome: figures.get(outcome, 0) for outcome in OUTCOMES},
        "errors": errors_of(figures),
        "first_token_p50_ms": _rounded(percentile_of(figures, "first_token_ms", MEDIAN)),
        "first_token_p95_ms": _rounded(percentile_of(figures, "first_token_ms", TAIL)),
        "total_p50_ms": _rounded(percentile_of(figures, "total_ms", MEDIAN)),
        "total_p95_ms": _rounded(percentile_of(figures, "total_ms", TAIL)),
        **{name: figures.get(name, 0) for name in TOKENS},
        "prompt_tokens_per_s": round(figures.get("prompt_tokens", 0) / step_s, 2),
        "completion_tokens_per_s": round(figures.get("completion_tokens", 0) / step_s, 2),
        "cost_micro_usd": figures.get("cost_micro_usd", 0),
        "queue_depth": _rounded(mean_of(figures, "queue_depth")),
        "queue_depth_max": _whole(percentile_of(figures, "queue_depth", 1.0)),
        "in_flight": _rounded(mean_of(figures, "in_flight")),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


UNKNOWN_MODEL = "-"
MAX_CODE_CHARS = 64
SUMS = (*TOKENS, "cost_micro_usd")


def changes_of(ended: Iterable[tuple[Settle, Outcome]]) -> dict[SeriesKey, Figures]:
    changes: dict[SeriesKey, Figures] = {}
    for settle, kind in ended:
        figures = _figures_of(settle, kind)
        for subject in _subjects_of(settle):
            add(changes.setdefault(subject, {}), figures)
    return changes


def _figures_of(settle: Settle, kind: Outcome) -> Figures:
    """Times are of answered requests alone: a refusal's would be those of no model."""
    figures = {"requests": 1, kind.value: 1}
    if settle.outcome != FINISHED:
        figures[ERROR + settle.outcome[:MAX_CODE_CHARS].replace("\0", "")] = 1
    else:
        figures[in_bucket("total_ms", settle.duration_ms)] = 1
        if settle.time_to_first_token_ms is not None:
            figures[in_bucket("first_token_ms", settle.time_to_first_token_ms)] = 1
    for name in SUMS:
        if (number := getattr(settle, name)) > 0:
            figures[name] = number
    return figures


def _subjects_of(settle: Settle) -> list[SeriesKey]:
    """An unknown model, neuron or account has no series."""
    at = floor_s(settle.ended_unix_s, MINUTE_S)
    model = "" if settle.model == UNKNOWN_MODEL else settle.model
    named = ((Kind.MODEL, model), (Kind.NEURON, settle.neuron), (Kind.ACCOUNT, settle.account))
    return [
        SeriesKey(MINUTE_S, at, Kind.FLEET, FLEET_NAME),
        *(SeriesKey(MINUTE_S, at, kind, name) for kind, name in named if name),
    ]
