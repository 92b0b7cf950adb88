"""Waits for a load job to end, for calls that return the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleet.models import LoadJob

LOOK_EVERY_S = 0.5


def wait_for_job(
    job: LoadJob,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether it has ended by then; ``job`` is as it was last seen."""
    deadline_s = clock() + timeout_s
    while job.is_active:
        if clock() >= deadline_s:
            return False
        sleep(LOOK_EVERY_S)
        job.refresh_from_db()
    return True
