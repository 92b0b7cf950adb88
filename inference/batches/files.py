"""Contents of files, in a directory that all gateways of a fleet may share: ``<directory>/<id>``;
and a batch's input and results in it. Knows no database.

    adopt ─▶ renames the parts of earlier lease holders, so that they are this gateway's
    append ─▶ that part grows, line by line
    finish ─▶ the part becomes the file; the adopted parts are deleted

Each gateway writes its own part, and a gateway that adopts it renames it first. So a gateway that
lost its lease without detecting it has no part left to append to or to rename to the finished file.
A request has one result, the first that is found.
"""

from __future__ import annotations

import os
import uuid
from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from inference.batches.records import BatchRecord, is_id
from inference.wire.openai.batches import BatchLine, read_line, read_lines

UNFINISHED = ".part"


class FileStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, file_id: str) -> Path:
        assert is_id(file_id), "a file id that was not checked"
        return self._directory / file_id

    def part(self, file_id: str, holder: str) -> Path:
        assert holder.isalnum(), "a gateway's id that is none"
        path = self.path(file_id)
        return path.with_name(f"{path.name}.by-{holder}")

    def parts(self, file_id: str) -> list[Path]:
        found = self._directory.glob(f"{self.path(file_id).name}.by-*")
        return sorted(path for path in found if path.suffix != UNFINISHED)

    def take(self, part: Path) -> Path | None:
        """Its writer can neither append to a renamed part nor finish it. ``None``: it is gone."""
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
        """Writes atomically."""
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
            unfinished.unlink(missing_ok=True)  # a leftover would use the last room of a full disk
            raise

    def delete(self, file_id: str) -> None:
        path = self.path(file_id)
        for one in (path, *self._directory.glob(f"{path.name}.*")):
            one.unlink(missing_ok=True)

    def append_at(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Appends all of it or nothing. Raises ``FileNotFoundError`` for a missing file."""
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
    """Its writer may have died in the last line."""
    if path.is_file():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


class InputFile:
    """The file stays open, so that a deleted one can still be run. Blocking; used by one thread at
    a time."""

    def __init__(self, path: Path, endpoint: str) -> None:
        self._file = path.open("rb")
        self._endpoint = endpoint
        self._offsets = array("Q")
        self._position = 0

    def scan(self, answered: Container[str]) -> int:
        """Records the lines whose custom ids are not ``answered``. Returns the number of all.
        Raises ``InvalidRequestError``."""
        number = 0
        for offset, line in read_lines(self._file, self._endpoint):
            number += 1
            if line.custom_id not in answered:
                self._offsets.append(offset)
        return number

    def next_line(self) -> BatchLine | None:
        if self._position == len(self._offsets):
            return None
        offset = self._offsets[self._position]
        self._position += 1
        return self._line_at(offset)

    def rest(self) -> Iterator[BatchLine]:
        while (line := self.next_line()) is not None:
            yield line

    def close(self) -> None:
        self._file.close()

    def _line_at(self, offset: int) -> BatchLine:
        self._file.seek(offset)
        return read_line(self._file.readline().splitlines()[0], self._endpoint)


class ResultsTakenError(Exception):
    pass


class ResultFiles:
    """Blocking; used by one thread at a time."""

    def __init__(self, files: FileStore, batch: BatchRecord, holder: str) -> None:
        self._files = files
        self._file_ids = (batch.output_file, batch.error_file)
        self._holder = holder
        self._taken: list[Path] = []

    def adopt(self, on_result: Callable[[dict[str, Any]], None]) -> None:
        """Call it first."""
        seen: set[str] = set()
        for file_id in self._file_ids:
            lines = self._new_lines(self._take(file_id), seen, on_result)
            self._files.write_at(self._files.part(file_id, self._holder), lines)

    def append(self, file_id: str, pieces: Iterable[bytes]) -> None:
        try:
            self._files.append_at(self._files.part(file_id, self._holder), pieces)
        except FileNotFoundError as error:
            raise ResultsTakenError from error

    def finish(self) -> None:
        for file_id in self._file_ids:
            own = self._files.part(file_id, self._holder)
            try:
                if own.stat().st_size:
                    own.rename(self._files.path(file_id))
                else:
                    own.unlink()
            except FileNotFoundError:
                continue
        for path in self._taken:
            path.unlink(missing_ok=True)

    @staticmethod
    def _new_lines(
        paths: Iterable[Path], seen: set[str], on_result: Callable[[dict[str, Any]], None]
    ) -> Iterator[bytes]:
        for line in (line for path in paths for line in whole_lines(path)):
            result = orjson.loads(line)
            if result["custom_id"] not in seen:
                seen.add(result["custom_id"])
                on_result(result)
                yield line

    def _take(self, file_id: str) -> list[Path]:
        """Afterwards no earlier holder can finish that file."""
        parts = [self._files.take(part) for part in self._files.parts(file_id)]
        taken = [part for part in parts if part is not None]
        self._taken += taken
        return [self._files.path(file_id), *taken]
