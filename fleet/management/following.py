"""Prints the progress of jobs until they have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any, TextIO

from django.core.management.base import CommandError
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fleet.management.backend import Backend
from fleet.management.sizes import size_text

LOOK_EVERY_S = 1.0


def follow(
    backend: Backend,
    jobs: list[dict[str, Any]],
    report: Callable[[str], object],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """Returns the ended jobs. Raises ``CommandError`` when one did not succeed."""
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


DOWNLOAD_EVERY_S = 0.5
REPORT_EVERY_PERCENT = 10

Show = Callable[[dict[str, Any]], None]


def follow_download(backend: Backend, download: dict[str, Any], stream: Any) -> dict[str, Any]:
    """Returns the ended download; an interrupt cancels it. Raises ``CommandError`` when it did not
    succeed."""
    path = f"downloads/{download['id']}"
    with _shown(stream) as show:
        try:
            while download["finished_at"] is None:
                show(download)
                sleep(DOWNLOAD_EVERY_S)
                download = backend.ask("GET", path)
        except KeyboardInterrupt:
            backend.ask("POST", f"{path}/cancel", {})
            raise CommandError(
                f"The download is cancelled on {download['neuron']}; the next pull resumes it"
            ) from None
        show(download)
    if download["status"] != "succeeded":
        raise CommandError(download["failure_message"] or download_line(download))
    return download


def download_line(download: dict[str, Any]) -> str:
    what = f"{download['source']} {download['file']}".strip()
    words = [f"{download['kind']} {what} on {download['neuron']}:", download["status"]]
    if download["bytes_total"]:
        done, total = download["bytes_done"], download["bytes_total"]
        words.append(f"{done / total:.0%} of {size_text(total)}")
    if download["failure_message"]:
        words.append(download["failure_message"])
    return " ".join(words)


@contextmanager
def _shown(stream: Any) -> Iterator[Show]:
    if stream.isatty():
        with _bar(stream) as show:
            yield show
    else:
        yield _Lines(stream)


@contextmanager
def _bar(stream: TextIO) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream, markup=False)) as progress:
        task = progress.add_task("", total=None)

        def show(download: dict[str, Any]) -> None:
            progress.update(
                task,
                description=f"{download['neuron']}: {download['status']}",
                completed=download["bytes_done"],
                total=download["bytes_total"] or None,
            )

        yield show


class _Lines:
    """Prints changes of status, and progress at each tenth."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._printed: tuple[str, int] | None = None

    def __call__(self, download: dict[str, Any]) -> None:
        fraction = download["progress_fraction"] or 0.0
        now = (download["status"], int(fraction * 100) // REPORT_EVERY_PERCENT)
        if now != self._printed:
            self._printed = now
            self._stream.write(download_line(download))
