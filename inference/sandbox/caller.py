"""On whose behalf a job is done, and how long that may keep others waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from inference.sandbox.errors import NotWantedError

SLICE_S = 0.05
"""How often a caller that waits looks whether it is still wanted."""
PARKED_AFTER_S = 0.05
"""Ordinary jobs are done by then."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    account: str = ""
    model: str = ""
    is_wanted: Callable[[], bool] = _always
    """Whether anybody still waits for the result. Called a few times a second."""
    parked: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while the calling thread waits for long, so that another may take its place."""


class Wait:
    """One caller's waiting, for a worker and for its result. Parks the caller once it takes long;
    leave it with nothing locked."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._stack = ExitStack()
        self._started_s = time.monotonic()
        self._is_parked = False

    def __enter__(self) -> Wait:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_s

    def check(self) -> None:
        """After each slice. Raises ``NotWantedError``."""
        if not self._caller.is_wanted():
            raise NotWantedError
        if not self._is_parked and self.seconds >= PARKED_AFTER_S:
            self._is_parked = True
            self._stack.enter_context(self._caller.parked())
