"""Contents of files, in a directory that all gateways of a fleet may share: ``<directory>/<id>``.
Knows no database.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from inference.batches.records import is_id

UNFINISHED = ".part"


class FileStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, file_id: str) -> Path:
        assert is_id(file_id), "a file id that was not checked"
        return self._directory / file_id

    def part(self, file_id: str, holder: str) -> Path:
        """What one gateway has written of a file that grows."""
        assert holder.isalnum(), "a gateway's id that is none"
        path = self.path(file_id)
        return path.with_name(f"{path.name}.by-{holder}")

    def parts(self, file_id: str) -> list[Path]:
        found = self._directory.glob(f"{self.path(file_id).name}.by-*")
        return sorted(path for path in found if path.suffix != UNFINISHED)

    def take(self, part: Path) -> Path | None:
        """Renames a part, so that its writer can neither add to it nor finish it. ``None``: it is
        gone."""
        taken = part.with_name(f"{part.name.partition('.')[0]}.by-{uuid.uuid4().hex}")
        try:
            return part.rename(taken)
        except FileNotFoundError:
            return None

    def has(self, file_id: str) -> bool:
        return self.path(file_id).is_file()

    def size_bytes(self, file_id: str) -> int:
        return self.path(file_id).stat().st_size if self.has(file_id) else 0

    def write(self, file_id: str, pieces: Iterable[bytes]) -> None:
        """Whole or not at all."""
        self.write_at(self.path(file_id), pieces)

    def write_at(self, path: Path, pieces: Iterable[bytes]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = path.with_name(f"{path.name}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)  # of a full disk it would keep the last room
            raise

    def delete(self, file_id: str) -> None:
        path = self.path(file_id)
        for one in (path, *self._directory.glob(f"{path.name}.*")):
            one.unlink(missing_ok=True)

    def append_at(self, path: Path, pieces: Iterable[bytes]) -> None:
        """All of it or nothing. Raises ``FileNotFoundError``: it creates nothing."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            num_bytes_before = os.fstat(descriptor).st_size
            try:
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
                os.fsync(descriptor)
            except OSError:
                file.truncate(num_bytes_before)
                raise


def whole_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a file: its writer may have died in its last one."""
    if path.is_file():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
