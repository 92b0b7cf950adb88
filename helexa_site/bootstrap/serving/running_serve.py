"""Records the address of a data directory's ``serve`` for commands on this machine: in
``serve.json``, which its owner alone can read. The file exists while serve runs."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from helexa_site.whole_file import write_whole

RUNNING_FILE = "serve.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServe:
    url: str
    key: str = field(repr=False)
    process_id: int


def write_running(data_dir: Path, running: RunningServe) -> None:
    """Writes the file whole, and for its owner alone. Raises ``OSError``."""
    write_whole(data_dir / RUNNING_FILE, json.dumps(asdict(running)))


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
