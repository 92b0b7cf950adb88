"""A load's progress callback, a slow job that reports while it runs, and the child's end of a
process that reads one order from stdin and writes a message a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

import msgspec

from inference.garbage import release_freed_memory
from inference.protocol.load_report import LoadProgress
from inference.supervised_threads import SupervisedPool, SupervisedThread

OnProgress = Callable[[LoadProgress], None]


def after_each_tensor(on_progress: OnProgress) -> OnProgress:
    """Releases freed memory first: else a load takes one tensor more than the model."""

    def report(progress: LoadProgress) -> None:
        release_freed_memory()
        on_progress(progress)

    return report


REPORT_EVERY_S = 0.5

Result = TypeVar("Result")


def run_watched(job: Callable[[], Result], report: Callable[[], None]) -> Result:
    """Calls ``report`` every ``REPORT_EVERY_S`` and once at the end. Raises what ``job`` raises. If
    ``report`` raises, the job is not waited for."""
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


def read_order() -> bytes:
    """From then on the process ends when its parent does."""
    order = sys.stdin.buffer.readline()
    SupervisedThread(_end_with_parent, name="end-with-parent").start()
    return order


def send(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
