"""Replies of Redis' protocol (RESP2) as they come in, cut anywhere. Pure.

hiredis parses them; the bytes of a reply that is not complete yet are counted here. The protocol is
at https://redis.io/docs/latest/develop/reference/protocol-spec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hiredis
import redis


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
