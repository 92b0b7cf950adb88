"""Exponential back-off: how long a loop waits after its n-th failure in a row. Pure; standard
library only."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_DOUBLINGS = 64
"""Later failures wait as long as this many doublings; a float holds no arbitrary power of two."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """``first_s`` after the first failure, doubled with each further one up to ``max_s``."""

    first_s: float
    max_s: float

    def wait_s(self, num_failures: int) -> float:
        """Seconds to wait after the ``num_failures``-th failure in a row (≥ 1)."""
        return min(self.first_s * 2.0 ** min(num_failures - 1, _MAX_DOUBLINGS), self.max_s)
