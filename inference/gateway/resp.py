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
    error is a ``redis.ResponseError``, given like any other reply."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        """The replies that are whole now. Raises ``redis.InvalidResponse``."""
        self._unread = unread = self._unread + data if self._unread else data
        position = 0
        while position < len(unread):
            try:
                reply, position = _read(unread, position)
            except _IncompleteError:
                break
            self._unread = unread[position:]
            yield reply
        self._unread = unread[position:]


class _IncompleteError(Exception):
    """The rest is still to come."""


def _read(data: bytes, position: int) -> tuple[Any, int]:
    """The reply at ``position`` and where the next one begins."""
    line_end = data.find(LINE_END, position)
    if line_end < 0:
        raise _IncompleteError
    kind, line, after = data[position], data[position + 1 : line_end], line_end + 2
    if kind == BULK:
        return _bulk(data, after, int(line))
    if kind == ARRAY:
        return _array(data, after, int(line))
    if kind == INTEGER:
        return int(line), after
    if kind == STATUS:
        return line, after
    if kind == ERROR:
        return redis.ResponseError(line.decode(errors="replace")), after
    raise redis.InvalidResponse(f"a reply that begins with {data[position : position + 20]!r}")


def _bulk(data: bytes, start: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, start
    end = start + length
    if len(data) < end + 2:
        raise _IncompleteError
    return data[start:end], end + 2


def _array(data: bytes, position: int, length: int) -> tuple[list[Any] | None, int]:
    if length < 0:
        return None, position
    items = []
    for _ in range(length):
        item, position = _read(data, position)
        items.append(item)
    return items, position
