"""How much a number varies from step to step, of late. Pure."""

from __future__ import annotations

FADING = 0.9
"""What a step counts for, with each later one: the last ten decide, as machines change."""
SETTLED_AFTER = 4
"""Numbers after which a spread is known."""


class Spread:
    """Faded mean and variance."""

    def __init__(self) -> None:
        self._num = 0
        self._mean = self._variance = 0.0

    def record(self, value: float) -> None:
        self._num += 1
        gain = max(1 - FADING, 1 / self._num)
        away = value - self._mean
        self._mean += gain * away
        self._variance += gain * ((1 - gain) * away**2 - self._variance)

    @property
    def is_settled(self) -> bool:
        return self._num >= SETTLED_AFTER

    def is_within(self, share: float) -> bool:
        """Whether the standard deviation is less than ``share`` of the mean."""
        return self._variance < (share * self._mean) ** 2
