"""Following jobs until they have ended, in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from fleet.management.backend import Backend

LOOK_EVERY_S = 1.0


def follow(
    backend: Backend,
    jobs: list[dict[str, Any]],
    report: Callable[[str], object],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """The jobs as they ended. Raises ``CommandError`` when one did not succeed."""
    ended, reported = [], ""
    for job in jobs:
        while job["finished_at"] is None:
            if (line := job_line(job)) != reported:
                report(line)
                reported = line
            sleep(LOOK_EVERY_S)
            job = backend.ask("GET", f"load-jobs/{job['id']}")
        report(job_line(job))
        ended.append(job)
    for job in ended:
        if job["status"] != "succeeded":
            raise CommandError(job["failure_message"] or job_line(job))
    return ended


def job_line(job: dict[str, Any]) -> str:
    words = [f"{job['kind']} {job['model']} on {job['neuron']}:", job["status"]]
    if job["status"] == "running" and job["stage"]:
        words.append(job["stage"])
        if job["progress_fraction"] is not None:
            words.append(f"{job['progress_fraction']:.0%}")
    if job["status"] == "pending" and job["note"]:
        words.append(f"({job['note']})")
    if job["failure_message"]:
        words.append(job["failure_message"])
    return " ".join(words)
