"""A log file that stays small: one previous file is kept."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 10 * 1024 * 1024
LOST = b"(%d lines were lost: they could not be written)\n"


class LogFile:
    """Appended to by one thread at a time; ``path`` becomes ``path.1`` when it is full."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._num_lost = 0
        self._open()

    def write(self, line: bytes) -> None:
        """Appends a line. A line that does not fit on a full disk is lost; a later line reports how
        many were. The writer never waits for a reader."""
        try:
            if self._num_lost:
                self._append(LOST % self._num_lost)
                self._num_lost = 0
            self._append(line)
        except OSError:
            self._num_lost += 1

    def close(self) -> None:
        self._file.close()

    def _append(self, line: bytes) -> None:
        if self._size_bytes + len(line) > self._max_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        if self._file.closed:
            self._open()
        self._size_bytes += self._file.write(line)

    def _open(self) -> None:
        self._file = self.path.open("ab", buffering=0)
        self._size_bytes = self._file.tell()
