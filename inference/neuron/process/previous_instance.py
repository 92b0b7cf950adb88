"""The name lease of this neuron's previous instance on the same data directory.

It is in a file that an instance locks while it runs. An instance that gets the lock knows that the
previous one is dead, and need not wait for its lease to expire."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

MAX_BYTES = 4096


class PreviousInstance:
    """``lease_value``: the lease of the previous instance; empty if it may be alive or there was
    none."""

    def __init__(self, data_dir: Path, neuron: str) -> None:
        self.lease_value = b""
        self._fd: int | None = None
        path = data_dir / "neurons" / f"{neuron}.lease"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return
            self.lease_value = os.pread(fd, MAX_BYTES, 0)
            self._fd = fd  # for the rest of the process: the lock is its sign of life

    def write(self, lease_value: bytes) -> None:
        """What this life holds now."""
        if self._fd is None:
            return
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, lease_value, 0)
        except OSError as error:
            log.warning("the next life of this neuron will have to wait for its name: %s", error)

    def close(self) -> None:
        """Gives the file up, as the end of the process would."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
