"""Redis' protocol (RESP2, https://redis.io/docs/latest/develop/reference/protocol-spec), pure:
commands to bytes, and bytes to replies as they come in, cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

LINE_END = b"\r\n"
ARRAY, BULK, INTEGER, STATUS, ERROR = b"*$:+-"


def pack(arguments: Sequence[bytes | str | int]) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class ReplyBuffer:
    """Bulk strings and statuses are bytes, arrays lists, integers ``int``; nothing is ``None``; an
    error is a ``redis.ResponseError``, given like any other reply.

    Each byte is parsed once, however a reply is cut: what is complete of an unfinished array is
    kept as objects.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        """Received of the reply that is not complete yet, and of what came after it."""
        self._unread = bytearray()
        self._position = 0
        self._bulk_length: int | None = None
        """Of the bulk string whose bytes come next."""
        self._open_arrays: list[tuple[list[Any], int]] = []
        """The items so far and the length of each array that is not complete, outermost first."""

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the replies that are complete now. Raises ``redis.InvalidResponse``."""
        self._unread += data
        self.num_bytes += len(data)
        while (value := self._next_value()) is not _INCOMPLETE:
            if (reply := self._placed(value)) is not _INCOMPLETE:
                self._discard_read()
                self.num_bytes = len(self._unread)
                yield reply
        self._discard_read()

    def _discard_read(self) -> None:
        del self._unread[: self._position]
        self._position = 0

    def _next_value(self) -> Any:
        """The next value that is no array of other values, or ``_INCOMPLETE``."""
        while True:
            if self._bulk_length is not None:
                return self._bulk(self._bulk_length)
            end = self._unread.find(LINE_END, self._position)
            if end < 0:
                return _INCOMPLETE
            kind, line = self._unread[self._position], bytes(self._unread[self._position + 1 : end])
            if kind not in KINDS:
                beginning = bytes(self._unread[self._position : self._position + 20])
                raise redis.InvalidResponse(f"a reply that begins with {beginning!r}")
            self._position = end + 2
            if kind == BULK and int(line) >= 0:
                self._bulk_length = int(line)
            elif kind == ARRAY and int(line) > 0:
                self._open_arrays.append(([], int(line)))
            else:
                return _scalar(kind, line)

    def _bulk(self, length: int) -> Any:
        end = self._position + length
        if len(self._unread) < end + 2:
            return _INCOMPLETE
        with memoryview(self._unread) as unread:
            value = bytes(unread[self._position : end])
        self._position = end + 2
        self._bulk_length = None
        return value

    def _placed(self, value: Any) -> Any:
        """Put a value into the array that it belongs to. The reply that it completes, or
        ``_INCOMPLETE``."""
        while self._open_arrays:
            items, length = self._open_arrays[-1]
            items.append(value)
            if len(items) < length:
                return _INCOMPLETE
            self._open_arrays.pop()
            value = items
        return value


class _Incomplete:
    """The rest has not come yet."""


_INCOMPLETE = _Incomplete()
KINDS = frozenset((ARRAY, BULK, INTEGER, STATUS, ERROR))


def _scalar(kind: int, line: bytes) -> Any:
    if kind == INTEGER:
        return int(line)
    if kind == STATUS:
        return line
    if kind == ERROR:
        return redis.ResponseError(line.decode(errors="replace"))
    return None if int(line) < 0 else []
