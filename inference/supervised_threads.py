"""Threads and pools that never end silently.

    SupervisedThread   target ─ raises anything ─▶ logged, on_broken ─▶ target again, after a pause
    SupervisedPool     job ─ raises a BaseException ─▶ logged; its future has a BrokenJobError
    thread_problems    recent failures, as sentences for the health page

A BaseException that is no Exception (``SystemExit``, or a panic in Rust, which PyO3 raises as
``PanicException``) passes every ``except Exception`` and ends a plain thread.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from inference.backoff import Backoff

log = logging.getLogger(__name__)

BACKOFF = Backoff(first_s=0.1, max_s=5.0)
SOUND_AFTER_S = 60.0
"""A target that has run this long has recovered: its pauses and its health start anew."""
MAX_FAILURE_CHARACTERS = 200

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class BrokenJobError(Exception):
    pass


class FailureRecord:
    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``what`` breaks, in words: ``thread intake-0``."""
        self.what = what
        self.has_ended = False
        self._clock = clock
        self._started_s = 0.0
        self._num_failures = 0
        self._failed_s: float | None = None
        self._failure = ""
        with _registering:
            _records.add(self)

    def starts(self) -> None:
        self._started_s = self._clock()

    def broke(self, error: BaseException) -> float:
        """Returns the seconds to wait before the next call."""
        self._failed_s = self._clock()
        ran_s = self._failed_s - self._started_s
        self._num_failures = 1 if ran_s > SOUND_AFTER_S else self._num_failures + 1
        self._failure = f"{type(error).__name__}: {error}"[:MAX_FAILURE_CHARACTERS]
        log.critical("the %s broke", self.what, exc_info=error)
        return BACKOFF.wait_s(self._num_failures)

    @property
    def problem(self) -> str | None:
        if self._failed_s is None or self.has_ended:
            return None
        if self._clock() - self._failed_s > SOUND_AFTER_S:
            return None
        times = "once" if self._num_failures == 1 else f"{self._num_failures} times"
        return f"the {self.what} broke {times} lately and was started again: {self._failure}"


class SupervisedThread:
    """A daemon thread that calls ``target`` until it returns. ``on_broken`` runs in this thread."""

    def __init__(
        self,
        target: Callable[[], object],
        *,
        name: str,
        restarts: bool = True,
        on_broken: Callable[[BaseException], object] = lambda _: None,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._target = target
        self._restarts = restarts
        self._on_broken = on_broken
        self._pause = pause
        self._thread: threading.Thread | None = None
        self._record = FailureRecord(f"thread {name}", clock=clock)

    def start(self) -> None:
        """Raises ``RuntimeError`` where the system has no thread to give."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while not self._record.has_ended:
            self._record.starts()
            try:
                self._target()
                self._record.has_ended = True
            except BaseException as error:  # noqa: BLE001 -- nothing may end it silently
                pause_s = self._record.broke(error)
                self._call_on_broken(error)
                if self._restarts:
                    self._pause(pause_s)
                self._record.has_ended = not self._restarts

    def _call_on_broken(self, error: BaseException) -> None:
        try:
            self._on_broken(error)
        except BaseException:
            log.exception("what follows the failure of the thread %s broke as well", self.name)


class SupervisedPool(ThreadPoolExecutor):
    """A pool whose jobs fail with an ``Exception`` whatever they raise, so that the thread or event
    loop that waits for one survives it. Its threads outlive every job."""

    def submit(
        self,
        fn: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Future[Result]:
        return super().submit(lambda: contained(fn, *args, **kwargs))


def contained(
    job: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Raises ``BrokenJobError`` for what is no ``Exception``."""
    try:
        return job(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        log.critical("%s broke", getattr(job, "__qualname__", job), exc_info=error)
        raise BrokenJobError(f"{type(error).__name__}: {error}") from error


def thread_problems() -> list[str]:
    with _registering:
        records = list(_records)
    problems = (record.problem for record in records)
    return sorted(problem for problem in problems if problem is not None)


_records: weakref.WeakSet[FailureRecord] = weakref.WeakSet()
_registering = threading.Lock()
