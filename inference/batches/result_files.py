"""The results of one batch, while one gateway works on it.

    adopt ─▶ what earlier holders of the lease wrote becomes a part of this one's own
    append ─▶ that part grows, line by line
    finish ─▶ the part becomes the file; what was adopted is deleted

Each gateway writes a part of its own, so that one that lost its lease without knowing it (a process
that was stopped and goes on) spoils nothing: what it writes afterwards is nobody's. A request has
one result, the first that is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from inference.batches.file_store import FileStore, whole_lines
from inference.batches.records import BatchRecord


class ResultFiles:
    """Blocking; used by one thread at a time."""

    def __init__(self, files: FileStore, batch: BatchRecord, holder: str) -> None:
        self._files = files
        self._file_ids = (batch.output_file, batch.error_file)
        self._holder = holder
        self._adopted: list[Path] = []

    def adopt(self) -> list[dict[str, Any]]:
        """What has been answered."""
        results: list[dict[str, Any]] = []
        seen: set[str] = set()
        for file_id in self._file_ids:
            own = self._files.part(file_id, self._holder)
            found = [self._files.path(file_id), *self._files.parts(file_id)]
            lines: list[bytes] = []
            for line in (line for path in found for line in whole_lines(path)):
                result = orjson.loads(line)
                if result["custom_id"] not in seen:
                    seen.add(result["custom_id"])
                    results.append(result)
                    lines.append(line + b"\n")
            if lines:
                self._files.write_at(own, b"".join(lines))
            self._adopted += [path for path in found[1:] if path != own]
        return results

    def append(self, file_id: str, lines: bytes) -> None:
        self._files.append_at(self._files.part(file_id, self._holder), lines)

    def finish(self) -> None:
        for file_id in self._file_ids:
            own = self._files.part(file_id, self._holder)
            if own.is_file():
                own.replace(self._files.path(file_id))
        for path in self._adopted:
            path.unlink(missing_ok=True)
