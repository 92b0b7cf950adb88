"""Warns of requests that wait long in the queue, each once, with its id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

log = logging.getLogger(__name__)

LONG_WAIT_S = 10.0


class Waiting(Protocol):
    sequence_id: str


class LongWaits:
    """``overdue(now_s)`` are those whose longest wait, ``max_wait_s``, is over by then."""

    def __init__(self, overdue: Callable[[float], Iterable[Waiting]], max_wait_s: float) -> None:
        self._overdue = overdue
        self._time_left_s = max_wait_s - LONG_WAIT_S
        self._warned: set[str] = set()

    def warn(self, now_s: float) -> None:
        if self._time_left_s <= 0:
            return  # they fail before that
        for waiting in self._overdue(now_s + self._time_left_s):
            if waiting.sequence_id not in self._warned:
                self._warned.add(waiting.sequence_id)
                log.warning(
                    "request %s has waited %g s for a place", waiting.sequence_id, LONG_WAIT_S
                )

    def forget(self, sequence_id: str) -> None:
        self._warned.discard(sequence_id)
