"""The figures of one subject in one step of time, as named integers that add up. Pure.

``requests`` ``answered`` ``refused`` …   counts, and sums of tokens
``error:queue_full``                      a count by code
``total_ms@47``                           a histogram's bucket: see ``metering.series.histogram``
``queue_depth+``                          the sum of samples, of which there are ``samples``
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metering.series.histogram import bucket_of, percentile

ERROR = "error:"
OTHER_CODES = "other"
MAX_CODES = 50
"""One row has as many codes at most: a neuron may be hostile, and its codes are its own."""
BUCKET = "@"
SUM = "+"

Figures = dict[str, int]


def add(figures: Figures, more: Mapping[str, int]) -> None:
    """Adds ``more`` to ``figures``. Codes beyond ``MAX_CODES`` count as one."""
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
    """The figure that counts values like this one."""
    return f"{name}{BUCKET}{bucket_of(value)}"


def errors_of(figures: Mapping[str, int]) -> dict[str, int]:
    """Requests by code, the most first."""
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
    """The mean of samples; ``None``: there are none."""
    num_samples = figures.get(samples, 0)
    return figures.get(name + SUM, 0) / num_samples if num_samples else None
