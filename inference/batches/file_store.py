"""Contents of files, on this host's disk: ``<data directory>/files/<id>``. Knows no database.

Result files grow line by line. After a crash their last line may be half there: it is cut off, and
its request is answered again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson

from inference.batches.records import is_id


class FileStore:
    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "files"

    def path(self, file_id: str) -> Path:
        assert is_id(file_id), "a file id that was not checked"
        return self._directory / file_id

    def has(self, file_id: str) -> bool:
        return self.path(file_id).is_file()

    def size_bytes(self, file_id: str) -> int:
        return self.path(file_id).stat().st_size if self.has(file_id) else 0

    def write(self, file_id: str, content: bytes) -> None:
        """Whole or not at all."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(file_id)
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.replace(path)

    def read(self, file_id: str) -> bytes:
        return self.path(file_id).read_bytes()

    def delete(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)

    def append(self, file_id: str, lines: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.path(file_id).open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def results(self, file_id: str) -> list[dict[str, Any]]:
        """The lines of a result file, whose last one is whole afterwards."""
        if not self.has(file_id):
            return []
        content = self.read(file_id)
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path(file_id), whole)
        return [orjson.loads(line) for line in content[:whole].splitlines()]
