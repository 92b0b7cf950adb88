"""Prints the progress of jobs until they have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

from django.core.management.base import CommandError
from rich import progress
from rich.console import Console

from fleet.management.backend import Backend
from fleet.words import share_text, size_text

LOOK_EVERY_S = 1.0
DOWNLOAD_EVERY_S = 0.5
REPORT_EVERY_PERCENT = 10
Show = Callable[[dict[str, Any]], None]


def follow(
    backend: Backend,
    jobs: list[dict[str, Any]],
    report: Callable[[str], object],
    *,
    sleep: Callable[[float], None] = sleep,
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
        words += [job["stage"], share_text(job["progress_fraction"])]
    if job["status"] == "pending" and job["note"]:
        words.append(f"({job['note']})")
    return " ".join(filter(None, [*words, job["failure_message"]]))


def follow_download(backend: Backend, download: dict[str, Any], stream: Any) -> dict[str, Any]:
    """Returns the ended download; an interrupt cancels it. Raises ``CommandError`` when it did not
    succeed."""
    path = f"downloads/{download['id']}"
    with (_bar if stream.isatty() else _lines)(stream) as show:
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
    if total := download["bytes_total"]:
        words.append(f"{share_text(download['bytes_done'] / total)} of {size_text(total)}")
    return " ".join(filter(None, [*words, download["failure_message"]]))


@contextmanager
def _bar(stream: Any) -> Iterator[Show]:
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(file=stream, markup=False)) as shown:
        task = shown.add_task("", total=None)

        def show(download: dict[str, Any]) -> None:
            shown.update(
                task,
                description=f"{download['neuron']}: {download['status']}",
                completed=download["bytes_done"],
                total=download["bytes_total"] or None,
            )

        yield show


@contextmanager
def _lines(stream: Any) -> Iterator[Show]:
    """Prints changes of status, and progress at each tenth."""
    printed: tuple[str, int] | None = None

    def show(download: dict[str, Any]) -> None:
        nonlocal printed
        percent = int((download["progress_fraction"] or 0.0) * 100)
        now = (download["status"], percent // REPORT_EVERY_PERCENT)
        if now != printed:
            printed = now
            stream.write(download_line(download))

    yield show
