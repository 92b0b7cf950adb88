"""Exponential back-off. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_DOUBLINGS = 64
"""Later failures wait as long as this many doublings; a float holds no arbitrary power of two."""


@dataclass(frozen=True, slots=True)
class Backoff:
    first_s: float
    max_s: float

    def wait_s(self, num_failures: int) -> float:
        return min(self.first_s * 2.0 ** min(num_failures - 1, _MAX_DOUBLINGS), self.max_s)
