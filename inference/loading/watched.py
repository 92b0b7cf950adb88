"""Runs a slow job aside while its caller tells how it goes, from the caller's own thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

INTERVAL_S = 0.5

Result = TypeVar("Result")


def run_watched(
    job: Callable[[], Result], tell: Callable[[], None], interval_s: float = INTERVAL_S
) -> Result:
    """``tell`` is called at intervals while ``job`` runs in a thread, and once when it is done.
    Raises what ``job`` raises, and what ``tell`` does: the job is not waited for then."""
    executor = ThreadPoolExecutor(max_workers=1)
    try:
        future = executor.submit(job)
        while not wait([future], timeout=interval_s).done:
            tell()
        result = future.result()
    finally:
        executor.shutdown(wait=False)
    tell()
    return result


def bytes_under(directory: Path) -> int:
    """Of all files there now, links left out."""
    return sum(stats.st_size for path, stats in files_under(directory) if not path.is_symlink())


def files_under(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Sorted within each folder. Files and folders come and go while a download runs: what is gone
    is left out."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(folder, name)
            try:
                yield path, path.stat()
            except FileNotFoundError:
                continue
