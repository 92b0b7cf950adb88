"""Room on the disks that helexa writes to, and the right to write there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from helexa_site.config import Config
from helexa_site.doctor.findings import Finding, failed, ok, warning
from inference.settings.neuron import HF_CACHE, HF_HOME, HF_HUB_CACHE
from inference.settings.setting import Setting
from inference.settings.storage import DATA_DIR, FILES_DIR

CHECK = "disk"
GIB = 1024**3
LEAST_BYTES = 1 * GIB
LITTLE_BYTES = 10 * GIB
"""Free bytes below which the doctor warns, less than a model of 14 billion parameters in 4 bits."""


def disk_findings(
    config: Config,
    environment: Mapping[str, str],
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Iterator[Finding]:
    folders: list[tuple[str, Path, Setting[Any]]] = [
        ("the data directory", config.data_dir, DATA_DIR)
    ]
    if config.files_dir is not None:
        folders.append(("the directory of clients' files", config.files_dir, FILES_DIR))
    for setting in (HF_CACHE, HF_HUB_CACHE, HF_HOME):
        if named := setting.read(environment):
            folders.append(("the cache of Hugging Face", Path(named), setting))
            break
    for what, folder, setting in folders:
        there = _nearest(folder)
        if error := _try_to_make(there):
            verb = "written" if there == folder and there.is_dir() else "made"
            yield failed(
                CHECK,
                f"{what} {folder} cannot be {verb}: {error.strerror}",
                f"let this user write to {there}, or set {setting.name} to another directory",
            )
            continue
        yield _room(what, folder, free_bytes(there))


def _room(what: str, folder: Path, free: int) -> Finding:
    text = f"{what} {folder} has {free / GIB:.1f} GiB free"
    mend = "delete cached models on the neuron's page, or give it more room"
    if free < LEAST_BYTES:
        return failed(CHECK, text, mend)
    return warning(CHECK, text, mend) if free < LITTLE_BYTES else ok(CHECK, text)


def _try_to_make(there: Path) -> OSError | None:
    """Why no directory can be made there. Whether one can is only known by making one: root may
    write where nothing can be made. It is removed at once."""
    try:
        Path(tempfile.mkdtemp(prefix=".helexa-doctor-", dir=there)).rmdir()
    except OSError as error:
        return error
    return None


def _nearest(folder: Path) -> Path:
    """The folder, or where it would be made."""
    return next(path for path in (folder, *folder.parents) if path.exists())
