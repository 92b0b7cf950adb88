"""The figures of a point in the units that people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metering.ledger.entries import Outcome
from metering.series.figures import errors_of, mean_of, percentile_of
from metering.series.kinds import Kind

OUTCOMES = tuple(outcome.value for outcome in Outcome)
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
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
