"""An upstream's bytes as frames: the data of each event of a stream, or each line of JSON. Pure.

Of server-sent events, fields other than ``data`` and comments are skipped: what matters of the
event's name is in its data too. Source:
https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

from typing import Protocol

MAX_FRAME_BYTES = 8 * 1024 * 1024
"""One frame has at most as many bytes. Arguments of a tool call may come in one."""


class FrameError(ValueError):
    """What no stream of frames holds; the message has none of its bytes."""


class FrameReader(Protocol):
    def feed(self, part: bytes) -> list[bytes]:
        """Takes bytes as they come, cut anywhere, and returns the frames that are whole now. Raises
        ``FrameError`` where one is too large."""
        ...


class SseReader:
    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._data: list[bytes] = []
        self._num_data_bytes = 0

    def feed(self, part: bytes) -> list[bytes]:
        found: list[bytes] = []
        *lines, rest = part.split(b"\n")
        if lines and self._begun:
            lines[0] = bytes(self._begun + lines[0])
            self._begun.clear()
        for line in lines:
            self._line(line, found)
        self._begun += rest
        if len(self._begun) + self._num_data_bytes > self._max_bytes:
            raise FrameError(f"an event of more than {self._max_bytes:,} bytes")
        return found

    def _line(self, line: bytes, found: list[bytes]) -> None:
        if line.endswith(b"\r"):
            line = line[:-1]
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
                self._data, self._num_data_bytes = [], 0
            return
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._num_data_bytes += len(data)
            if self._num_data_bytes > self._max_bytes:
                raise FrameError(f"an event of more than {self._max_bytes:,} bytes")


class LinesReader:
    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, part: bytes) -> list[bytes]:
        whole, end, rest = part.rpartition(b"\n")
        lines: list[bytes] = []
        if end:
            lines = bytes(self._buffer + whole).splitlines()
            self._buffer.clear()
        self._buffer += rest
        if any(len(line) > self._max_bytes for line in (*lines, self._buffer)):
            raise FrameError(f"a line of more than {self._max_bytes:,} bytes")
        return [line for line in lines if line]
