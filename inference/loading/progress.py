"""The progress of a load: the callback that receives it, and a slow job that reports it while it
runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from inference.protocol.load_progress import LoadProgress
from inference.supervised_threads import SupervisedPool

OnProgress = Callable[[LoadProgress], None]


REPORT_EVERY_S = 0.5

Result = TypeVar("Result")


def run_watched(job: Callable[[], Result], report: Callable[[], None]) -> Result:
    """Calls ``report`` every ``REPORT_EVERY_S`` while ``job`` runs in a thread, and once when it is
    done. Raises what ``job`` raises. If ``report`` raises, the job is not waited for."""
    executor = SupervisedPool(max_workers=1)
    try:
        future = executor.submit(job)
        while not wait([future], timeout=REPORT_EVERY_S).done:
            report()
        result = future.result()
    finally:
        executor.shutdown(wait=False)
    report()
    return result
