"""What lies under a folder whose files come and go while a download runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def bytes_under(directory: Path) -> int:
    """What all files there take now, links left out."""
    return sum(stats.st_size for path, stats in files_under(directory) if not path.is_symlink())


def files_under(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Sorted within each folder. Files and folders that vanish meanwhile are left out."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(folder, name)
            try:
                yield path, path.stat()
            except FileNotFoundError:
                continue
