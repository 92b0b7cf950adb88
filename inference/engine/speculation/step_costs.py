"""What a step costs by the number of its rows that decode, learned from the times of steps.

A few rows share the weights that are read for them, so that four may cost little more than one;
from some number on each costs as much as the last. Where that is, only the device knows. Pure:
times are arguments.
"""

from __future__ import annotations

EXACT_ROWS = 8
"""Up to so many rows each number has a time of its own; beyond, so many share one."""
UNTRIED_ROW = 0.04
"""What a row is taken to add to a step of a size that has not been tried, in parts of the step."""
GAIN = 0.1
LONGEST = 2.0
"""A step that takes more than this many times as long as others met with something else."""
MIN_SAMPLES = 3
"""First times are those of caches that are cold."""


class StepCosts:
    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._num_samples: dict[int, int] = {}

    def record(self, num_rows: int, step_s: float) -> None:
        """Of a step without prompts."""
        size = _size(num_rows)
        known, count = self._seconds.get(size), self._num_samples.get(size, 0)
        self._num_samples[size] = count + 1
        if known is None:
            self._seconds[size] = step_s
        elif count < MIN_SAMPLES:
            self._seconds[size] = min(known, step_s)
        else:
            self._seconds[size] += GAIN * (min(step_s, LONGEST * known) - known)

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        """How much longer a step of ``num_rows`` takes than one of the fewer ``num_base_rows``;
        1 at least."""
        base = self._estimate(num_base_rows)
        return max(1.0, self._estimate(num_rows) / base) if base > 0 else 1.0

    def seconds(self, num_rows: int) -> float | None:
        """``None``: no step has been timed."""
        return self._estimate(num_rows) if self._seconds else None

    def _estimate(self, num_rows: int) -> float:
        """From the nearest size known: a smaller one first."""
        size = _size(num_rows)
        if (seconds := self._seconds.get(size)) is not None:
            return seconds
        if not self._seconds:
            return 1.0 + UNTRIED_ROW * num_rows
        smaller = [known for known in self._seconds if known < size]
        nearest = max(smaller) if smaller else min(self._seconds)
        return self._seconds[nearest] * (1.0 + UNTRIED_ROW * (size - nearest))


def _size(num_rows: int) -> int:
    """The largest number of rows with the same time."""
    if num_rows <= EXACT_ROWS:
        return num_rows
    return -(-num_rows // EXACT_ROWS) * EXACT_ROWS
