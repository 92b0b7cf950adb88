"""A total deadline for what the hub is asked: its client's timeouts are of each read.

A hub that sends a byte now and then is left to a daemon thread, which holds up no page and no
shutdown. At most ``MAX_THREADS`` are left so.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

MAX_THREADS = 8

Result = TypeVar("Result")

_free_threads = threading.BoundedSemaphore(MAX_THREADS)


class DeadlineError(Exception):
    """There was no answer in time, or earlier questions have no answer yet."""


def within(limit_s: float, ask: Callable[[], Result]) -> Result:
    """Raises ``DeadlineError``, and what ``ask`` raises."""
    if not _free_threads.acquire(timeout=limit_s):
        raise DeadlineError
    answers: queue.SimpleQueue[tuple[Result, None] | tuple[None, BaseException]] = (
        queue.SimpleQueue()
    )

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:  # noqa: BLE001 - raised where it was asked
            answers.put((None, error))
        finally:
            _free_threads.release()

    threading.Thread(target=run, name="hub", daemon=True).start()
    try:
        answer, error = answers.get(timeout=limit_s)
    except queue.Empty:
        raise DeadlineError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
