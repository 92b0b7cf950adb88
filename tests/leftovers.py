"""Which processes of this test run are still there: they carry its mark in their environment."""

from __future__ import annotations

import os
import time
import uuid

import psutil

MARK_VARIABLE = "HELEXA_TEST_RUN"
HARMLESS = ("torch/_inductor/compile_worker", "multiprocessing.resource_tracker")
"""Helpers of libraries inside the test process; they end with it."""
SETTLE_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.1


def mark_this_run() -> None:
    """Everything that is started from here on inherits the mark; this process itself does not."""
    os.environ.setdefault(MARK_VARIABLE, uuid.uuid4().hex)


def leftovers() -> list[psutil.Process]:
    """Marked processes that stay after a moment to settle."""
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while (found := _marked()) and time.monotonic() < deadline_s:
        time.sleep(POLL_INTERVAL_S)
    return found


def _marked() -> list[psutil.Process]:
    mark = os.environ[MARK_VARIABLE]
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in own and _has_mark(process, mark)
    ]


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        if process.environ().get(MARK_VARIABLE) != mark:
            return False
        command = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and not any(
            word in command for word in HARMLESS
        )
    except psutil.Error:
        return False
