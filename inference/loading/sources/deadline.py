"""A total deadline for requests to outside services whose clients have none: the hub, whose
client's timeouts are for each read, and the name resolver.

One that has no answer is left to a daemon thread, which holds up no page and no shutdown. At most
``MAX_THREADS`` of a kind are left so.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

MAX_THREADS = 8

Result = TypeVar("Result")

HUB_THREADS = threading.BoundedSemaphore(MAX_THREADS)
"""Those that are free for questions to the hub."""


class DeadlineError(Exception):
    """There was no answer in time, or earlier questions have no answer yet."""


def within(
    limit_s: float, ask: Callable[[], Result], *, threads: threading.BoundedSemaphore = HUB_THREADS
) -> Result:
    """Raises ``DeadlineError``, and what ``ask`` raises."""
    if not threads.acquire(timeout=limit_s):
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
            threads.release()

    threading.Thread(target=run, name="deadline", daemon=True).start()
    try:
        answer, error = answers.get(timeout=limit_s)
    except queue.Empty:
        raise DeadlineError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
