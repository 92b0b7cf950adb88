"""Runs a slow job aside while its caller tells how it goes, from the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from inference.supervised_threads import SupervisedPool

TELL_EVERY_S = 0.5

Result = TypeVar("Result")


def run_watched(job: Callable[[], Result], tell: Callable[[], None]) -> Result:
    """Calls ``tell`` every ``TELL_EVERY_S`` while ``job`` runs in a thread, and once when it is
    done. Raises what ``job`` raises, and what ``tell`` does: the job is not waited for then."""
    executor = SupervisedPool(max_workers=1)
    try:
        future = executor.submit(job)
        while not wait([future], timeout=TELL_EVERY_S).done:
            tell()
        result = future.result()
    finally:
        executor.shutdown(wait=False)
    tell()
    return result
