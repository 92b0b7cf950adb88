"""Room on the disks that helexa writes to, and the right to write there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from helexa_site.config import Config
from helexa_site.doctor.findings import Finding, failed, ok, warning

CHECK = "disk"
GIB = 1024**3
LEAST_BYTES = 1 * GIB
LITTLE_BYTES = 10 * GIB
"""Less than a model of 14 billion parameters in 4 bits."""


def disk_findings(
    config: Config,
    environment: Mapping[str, str],
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Iterator[Finding]:
    folders = {"the data directory": config.data_dir}
    if config.files_dir is not None:
        folders["the directory of clients' files"] = config.files_dir
    if named := environment.get("HF_HUB_CACHE") or environment.get("HF_HOME"):
        folders["the cache of Hugging Face"] = Path(named)
    for what, folder in folders.items():
        there = _nearest(folder)
        if not os.access(there, os.W_OK):
            yield failed(
                CHECK, f"{what} {folder} cannot be written", f"let this user write to {there}"
            )
            continue
        yield _room(what, folder, free_bytes(there))


def _room(what: str, folder: Path, free: int) -> Finding:
    text = f"{what} {folder} has {free / GIB:.1f} GiB free"
    mend = "delete cached models on the neuron's page, or give it more room"
    if free < LEAST_BYTES:
        return failed(CHECK, text, mend)
    return warning(CHECK, text, mend) if free < LITTLE_BYTES else ok(CHECK, text)


def _nearest(folder: Path) -> Path:
    """The folder, or where it would be made."""
    return next(path for path in (folder, *folder.parents) if path.exists())
