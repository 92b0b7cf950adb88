"""The requests of one batch, read from its file one at a time.

    scan ─▶ offsets of the lines that are to be run, 8 bytes each ─▶ next_line ─▶ one request

The file stays open, so that one that is deleted meanwhile can still be run. Blocking; used by one
thread at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator
from pathlib import Path

from inference.wire.common.batch_lines import BatchLine, read_line, read_lines


class InputFile:
    def __init__(self, path: Path, endpoint: str) -> None:
        self._file = path.open("rb")
        self._endpoint = endpoint
        self._offsets = array("Q")
        self._position = 0

    def scan(self, answered: Container[str]) -> int:
        """Checks every line, and remembers those whose custom ids are not among ``answered``.
        Returns how many lines there are. Raises ``InvalidRequestError``."""
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
