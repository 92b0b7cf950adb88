"""Following a download until it ends: a progress bar in a terminal, else a line now and then."""

from __future__ import annotations

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

LOOK_EVERY_S = 0.5
REPORT_EVERY_PERCENT = 10

Show = Callable[[dict[str, Any]], None]


def follow_download(backend: Backend, download: dict[str, Any], stream: Any) -> dict[str, Any]:
    """The download as it ended; an interrupt cancels it. Raises ``CommandError`` when it did not
    succeed."""
    path = f"downloads/{download['id']}"
    with _shown(stream) as show:
        try:
            while download["finished_at"] is None:
                show(download)
                sleep(LOOK_EVERY_S)
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
