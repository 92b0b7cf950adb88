"""Which kernels a model's ranks run is rank 0's decision: each would time them for itself, choose
differently where a card is busy, and take another time for its part of every sum.

    rank 0   weight 0: packed ─▶ weight 1: torch's ─▶ …      by its own trials and times
                  │ store              │
    others   weight 0 ◀┘         weight 1 ◀┘                 in the same order, timing nothing
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from inference.models.parallel.group import file_store

BUILD_TIMEOUT_S = 3600.0
"""Ranks read their files from one disk."""
FILE = "kernels"
"""The file's name, beside the file by which ranks meet."""


class SharedChoices:
    """A ``KernelChoice`` of ``LinearFactory``. Ranks ask in one order: that of their layers."""

    def __init__(
        self, meeting: Path, rank: int, num_ranks: int, timeout_s: float = BUILD_TIMEOUT_S
    ) -> None:
        """``timeout_s``: how long rank 0 may take from one weight to the next."""
        self._store = file_store(meeting.with_name(FILE), num_ranks)
        self._store.set_timeout(timedelta(seconds=timeout_s))
        self._is_first = rank == 0
        self._num_asked = 0

    def __call__(self, decide: Callable[[], bool]) -> bool:
        """Raises torch's ``RuntimeError`` where rank 0 decides nothing in time."""
        key = f"weight {self._num_asked}"
        self._num_asked += 1
        if not self._is_first:
            return bool(self._store.get(key) == b"1")
        chosen = decide()
        self._store.set(key, "1" if chosen else "0")
        return chosen
