"""A limit for every test: a hanging one fails and prints where all threads and tasks are; the run
continues.

    setup, call or teardown ─▶ limit ─▶ SIGALRM: TimeLimitExceeded is raised where the test waits

No signal reaches native code that never comes back: pytest's ``faulthandler_timeout`` ends its
process. pytest-xdist then names the test, and starts another process for the rest. Where processes
share cores the limit is longer: it is there for what never ends, and sets no aim for how long a
test may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

import pytest

LIMIT_S = 180.0
"""The limit of a test's setup, its call and its teardown, each. ``@pytest.mark.limit_s()`` sets
others."""
SETUP_LIMIT_S = 600.0
"""The limit of the first test that uses a server: it is started there."""
AGAIN_S = 60.0
"""After this it is raised again: something may have swallowed it."""


class TimeLimitExceeded(Exception):  # noqa: N818 - it is no error of the code that it is raised in
    pass


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _limited(item, SETUP_LIMIT_S):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _limited(item, LIMIT_S):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with _limited(item, LIMIT_S):
        return (yield)


@contextlib.contextmanager
def _limited(item: pytest.Item, default_s: float) -> Iterator[None]:
    mark = item.get_closest_marker("limit_s")
    limit_s = float(mark.args[0]) if mark else default_s
    if item.config.getoption("usepdb") or threading.current_thread() is not threading.main_thread():
        yield
        return
    began_s = time.monotonic()

    def on_alarm(signal_number: int, frame: FrameType | None) -> None:
        left_s = began_s + limit_s * processes_per_core() - time.monotonic()
        if left_s > 0:
            signal.setitimer(signal.ITIMER_REAL, left_s, AGAIN_S)
            return
        raise TimeLimitExceeded(f"not done within {limit_s:g} s\n{stacks()}")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def processes_per_core() -> float:
    """How many share a core, lately; at least one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def stacks() -> str:
    """The stacks of all threads, and of what waits on this thread's event loop."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        f"--- {names.get(thread_id, thread_id)}\n{''.join(traceback.format_stack(frame))}"
        for thread_id, frame in sys._current_frames().items()
    ]
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs here
        tasks = set()
    return "\n".join([*threads, *(f"--- task {task.get_name()}\n{_waits(task)}" for task in tasks)])


def _waits(task: asyncio.Task[Any]) -> str:
    """Where a task waits, outermost first."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        lines += traceback.format_list(traceback.StackSummary.extract([(frame, frame.f_lineno)]))
        awaited = awaited.cr_await
    return "".join(lines)
