"""A small file of the data directory that the first process that needs it writes, once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def keep_once(path: Path, text: str) -> None:
    """Appears with all that is in it, and once, however many processes start together. Only its
    owner can read it. Raises ``OSError``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return
