"""Where the serve of a data directory answers, for commands on this machine: ``serve.json``, which
its owner alone can read. It is there while serve runs."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

RUNNING_FILE = "serve.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServe:
    url: str
    key: str = field(repr=False)
    process_id: int


def write_running(data_dir: Path, running: RunningServe) -> None:
    """Never half of it, and never for others to read."""
    path = data_dir / RUNNING_FILE
    part = path.with_suffix(".part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(running), file)
    part.replace(path)


def forget_running(data_dir: Path) -> None:
    with contextlib.suppress(OSError):
        (data_dir / RUNNING_FILE).unlink()


def find_running(data_dir: Path) -> RunningServe | None:
    """``None``: none runs there, or it is not ours to ask. One that was killed leaves its file."""
    try:
        found = RunningServe(**json.loads((data_dir / RUNNING_FILE).read_text()))
        os.kill(found.process_id, 0)
    except (OSError, ValueError, TypeError):
        return None
    return found
