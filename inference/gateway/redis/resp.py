"""Redis' protocol (RESP2, https://redis.io/docs/latest/develop/reference/protocol-spec), pure:
commands to bytes, and bytes to replies as they come in, cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import hiredis
import redis


def pack(arguments: Sequence[bytes | str | int]) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class ReplyBuffer:
    """Bulk strings and statuses are bytes, arrays lists, integers ``int``; nothing is ``None``; an
    error is a ``redis.ResponseError``, given like any other reply. hiredis parses each byte once,
    however a reply is cut.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        """At most so many were received of the reply that is not complete yet."""
        self._reader = hiredis.Reader(
            protocolError=redis.InvalidResponse,
            replyError=redis.ResponseError,
            notEnoughData=_INCOMPLETE,
        )

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the replies that are complete now. Raises ``redis.InvalidResponse``."""
        self._reader.feed(data)
        self.num_bytes += len(data)
        while (reply := self._reader.gets()) is not _INCOMPLETE:
            self.num_bytes = len(data)
            yield reply
        if not self._reader.has_data():
            self.num_bytes = 0


class _Incomplete:
    """The rest has not come yet."""


_INCOMPLETE = _Incomplete()
