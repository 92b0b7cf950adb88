"""Reads what a neuron has written to Redis, never more than a bound in bytes.

A neuron may write anything of any size and type under its own keys. Scripts that gateways and
controls run measure a value in Redis before it is read, so that an oversized one costs a gateway
nothing. A value of another type is an error of that neuron alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

READ_STREAM = """
local num_bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
if not num_bytes then
    return {}
end
if num_bytes > tonumber(ARGV[1]) then
    return num_bytes
end
return redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', ARGV[2])
"""
"""KEYS: the stream. ARGV: the most bytes it may take, the most entries to read. Returns the
entries, or how many bytes it takes where that is too many."""

READ_FIELDS = """
for i = 2, #ARGV do
    local num_bytes = redis.call('HSTRLEN', KEYS[1], ARGV[i])
    if num_bytes > tonumber(ARGV[1]) then
        return num_bytes
    end
end
return redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
"""
"""KEYS: the hash. ARGV: the most bytes that one field may hold, the fields. Returns their values,
or how many bytes one holds where that is too many."""

StreamEntries = list[tuple[bytes, dict[bytes, bytes]]]


class OversizedError(Exception):
    """A neuron's value in Redis is larger than anybody reads."""

    def __init__(self, key: str, num_bytes: int, bound: int) -> None:
        super().__init__(f"{key} holds {num_bytes} bytes, over the bound of {bound}")


def stream_read(client: redis.Redis, key: str, *, max_bytes: int, count: int) -> StreamEntries:
    """The oldest entries of a neuron's stream. Raises ``OversizedError`` where the whole stream
    takes more than ``max_bytes``, ``redis.ResponseError`` where it is none, and
    ``redis.RedisError``."""
    reply: Any = client.eval(READ_STREAM, 1, key, max_bytes, count)
    if isinstance(reply, int):
        raise OversizedError(key, reply, max_bytes)
    return [
        (entry_id, dict(zip(fields[::2], fields[1::2], strict=True))) for entry_id, fields in reply
    ]


def fields_read(
    client: redis.Redis, key: str, fields: Sequence[str], *, max_bytes: int
) -> list[bytes | None]:
    """Fields of a neuron's hash. Raises as ``stream_read`` does, ``OversizedError`` where one of
    them holds more than ``max_bytes``."""
    reply: Any = client.eval(READ_FIELDS, 1, key, max_bytes, *fields)
    if isinstance(reply, int):
        raise OversizedError(key, reply, max_bytes)
    values: list[bytes | None] = reply
    return values
