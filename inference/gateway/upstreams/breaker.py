"""Whether an upstream is asked at all. Pure but for its clock.

closed ── MAX_FAILURES requests in a row that it was unavailable for ──▶ open, for OPEN_S
  ▲                                                                        │
  └── it answers ── one request tries ◀────────────────────────────────────┘
                       └── it is unavailable ──▶ open again
While open, a probe that finds it unavailable keeps it open for another OPEN_S.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_FAILURES = 5
OPEN_S = 10.0
TRIAL_S = 1.0
"""When a request is asked to come again while another one tries."""


class CircuitBreaker:
    """``admit`` before a request, then one of the others once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_failures = 0
        self._opened_s: float | None = None
        self._is_trying = False

    @property
    def left_s(self) -> float | None:
        """The seconds until a request may be sent. ``None``: it may be sent now, also as the one
        that tries."""
        if self._opened_s is None:
            return None
        left_s = self._opened_s + OPEN_S - self._clock()
        if left_s > 0:
            return left_s
        return TRIAL_S if self._is_trying else None

    def admit(self) -> float | None:
        """Returns what ``left_s`` does. ``None``: the caller sends the request, which may be the
        one that tries."""
        left_s = self.left_s
        if left_s is None and self._opened_s is not None:
            self._is_trying = True
        return left_s

    def answered(self) -> bool:
        """Whether that closes it."""
        was_open = self._opened_s is not None
        self._num_failures, self._opened_s, self._is_trying = 0, None, False
        return was_open

    def unavailable(self) -> bool:
        """Whether that opens it."""
        self._num_failures += 1
        if self._num_failures < MAX_FAILURES:
            return False
        was_open = self._opened_s is not None
        self._opened_s, self._is_trying = self._clock(), False
        return not was_open

    @property
    def is_open(self) -> bool:
        return self._opened_s is not None

    def stay_open(self) -> None:
        """A probe, which was no client's request, found it unavailable still."""
        if self.is_open and not self._is_trying:
            self._opened_s = self._clock()

    def left(self) -> None:
        """The client left before anything was known."""
        self._is_trying = False
