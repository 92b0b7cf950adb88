"""Notices a step that does not come back: a collective whose peer is gone, an endless kernel.

    engine thread     step ··· step ·················································
    watchdog thread     ·    ·    ·    ·    ·    ·  longer than the limit: on_hang

It works while the stuck call has released the interpreter lock, as torch and the native decoder
do. Where the lock itself is held nothing runs here any more, and the neuron is the one to notice.
Loading is not watched, because a download may take any time. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from inference.engine.faults.kinds import HangFault
from inference.settings.neuron import STEP_TIMEOUT_S
from inference.supervised_threads import SupervisedThread

CHECKS_PER_TIMEOUT = 4
MAX_CHECK_INTERVAL_S = 1.0


def step_timeout_s(environment: Mapping[str, str]) -> float | None:
    """``None``: steps have no time limit. Raises ``SettingError``."""
    return STEP_TIMEOUT_S.read(environment) or None


class StepWatchdog:
    """``on_hang`` is called once, in the watchdog's thread. ``timeout_s`` ``None``: never."""

    def __init__(self, timeout_s: float | None, on_hang: Callable[[HangFault], object]) -> None:
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._started_s: float | None = None

    def start(self) -> None:
        if self._timeout_s is not None:
            SupervisedThread(partial(self._watch, self._timeout_s), name="step-watchdog").start()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around each step, in the engine's thread."""
        self._started_s = time.monotonic()
        try:
            yield
        finally:
            self._started_s = None

    def _watch(self, timeout_s: float) -> None:
        interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S)
        while True:
            time.sleep(interval_s)
            started_s = self._started_s
            if started_s is not None and time.monotonic() - started_s > timeout_s:
                self._on_hang(HangFault(f"a step has not ended after {timeout_s:g} s"))
                return
