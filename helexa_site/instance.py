"""Which instance of helexa a server is: the id in its data directory, new for each directory.

Gateways send it with ``/health`` and ``/metrics``, so that commands on the same machine do not
mistake another instance's port for their own. It is no secret. The file also names the directory it
was
written for (device and inode): a copied directory is another instance and gets an id of its own.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from helexa_site.whole_file import keep_once

INSTANCE_FILE = "instance_id"
INSTANCE_BYTES = 16
INSTANCE_HEADER = "x-helexa-instance"


def known_instance_id(data_dir: Path) -> str | None:
    """``None``: no gateway has run on it yet, or could write there."""
    try:
        text = (data_dir / INSTANCE_FILE).read_text()
        known, _, written_for = text.partition(" ")
        return known if written_for == _identity(data_dir) else None
    except OSError:
        return None


@lru_cache(maxsize=8)
def instance_id(data_dir: Path) -> str | None:
    """The first process that asks writes it. ``None``: the directory cannot be written."""
    if (known := known_instance_id(data_dir)) is not None:
        return known
    try:
        with _locked(data_dir):
            if (known := known_instance_id(data_dir)) is None:
                path = data_dir / INSTANCE_FILE
                path.unlink(missing_ok=True)
                known = secrets.token_hex(INSTANCE_BYTES)
                keep_once(path, f"{known} {_identity(data_dir)}")
            return known
    except OSError:
        return None


def _identity(data_dir: Path) -> str:
    """Raises ``OSError``."""
    found = data_dir.stat()
    return f"{found.st_dev}:{found.st_ino}"


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Processes that start together write one after the other. Raises ``OSError``."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(data_dir, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
