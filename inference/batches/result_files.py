"""The results of one batch, while one gateway works on it.

    adopt ─▶ renames the parts of earlier lease holders, so that they are this gateway's
    append ─▶ that part grows, line by line
    finish ─▶ the part becomes the file; the adopted parts are deleted

Each gateway writes its own part, and a gateway that adopts it renames it first. So a gateway that
lost its lease unnoticed (a process that was stopped and resumed) does no harm: it has no part left
to append to, or to rename to the finished file. A request has one result, the first that is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from inference.batches.file_store import FileStore, whole_lines
from inference.batches.records import BatchRecord


class ResultsTakenError(Exception):
    """Another gateway has adopted the results and continues the batch."""


class ResultFiles:
    """Blocking; used by one thread at a time."""

    def __init__(self, files: FileStore, batch: BatchRecord, holder: str) -> None:
        self._files = files
        self._file_ids = (batch.output_file, batch.error_file)
        self._holder = holder
        self._taken: list[Path] = []

    def adopt(self, on_result: Callable[[dict[str, Any]], None]) -> None:
        """Takes over what has been answered and calls ``on_result`` with each result, one after the
        other. To be called first."""
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
        """The file that was finished, if one was, and all parts. What an earlier holder has not
        made that file by now it cannot make it any more."""
        parts = [self._files.take(part) for part in self._files.parts(file_id)]
        taken = [part for part in parts if part is not None]
        self._taken += taken
        return [self._files.path(file_id), *taken]
