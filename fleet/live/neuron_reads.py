"""Reads neurons' values in Redis, with a limit in bytes.

A neuron may write values of any size and type under its own keys. A text is read up to its limit;
other values are measured in Redis by a script before they are read, so an oversized value costs its
reader nothing. A value of another type is an error of that neuron alone.

A ``Read`` is a command for a pipeline of either kind of client, with its reply's decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis

Value = TypeVar("Value")

READ_FIELDS = """
for i = 2, #ARGV do
    local num_bytes = redis.call('HSTRLEN', KEYS[1], ARGV[i])
    if num_bytes > tonumber(ARGV[1]) then
        return num_bytes
    end
end
return redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
"""
"""KEYS: the hash. ARGV: the most bytes of one field, the fields. Returns their values, or the
number of bytes where that is too many."""

BOUNDED = """
local num_bytes = redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
if num_bytes and num_bytes > tonumber(ARGV[1]) then
    return num_bytes
end
return redis.call(ARGV[2], KEYS[1])
"""
"""ARGV: the most bytes of the key's value, a command. Returns its reply, or the number of bytes
where that is too many."""


class NeuronValueError(Exception):
    """A neuron's value in Redis is over the limit, or of another type."""


@dataclass(frozen=True, slots=True)
class Read(Generic[Value]):
    command: tuple[bytes | str | int, ...]
    key: str
    max_bytes: int
    decode: Callable[[Any], Value]

    def value(self, reply: Any) -> Value:
        """Decodes the command's reply. Raises ``NeuronValueError`` for the neuron's faults; errors
        of Redis as they are."""
        if isinstance(reply, Exception):
            if "WRONGTYPE" in str(reply):
                raise NeuronValueError(f"{self.key} is of another type") from reply
            raise reply
        if isinstance(reply, int):
            raise NeuronValueError(
                f"{self.key} holds {reply} bytes, over the bound of {self.max_bytes}"
            )
        return self.decode(reply)

    def run(self, client: redis.Redis) -> Value:
        """Raises as ``value`` does, and ``redis.RedisError``."""
        (value,) = run_reads(client, [self])
        if isinstance(value, NeuronValueError):
            raise value
        return value


def text_read(key: str, *, max_bytes: int) -> Read[bytes | None]:
    """``None`` where it does not exist."""

    def decode(reply: Any) -> bytes | None:
        data = reply.encode() if isinstance(reply, str) else bytes(reply)
        if len(data) > max_bytes:
            raise NeuronValueError(f"{key} holds more than {max_bytes} bytes")
        return data or None

    return Read(("GETRANGE", key, 0, max_bytes), key, max_bytes, decode)


def fields_read(key: str, fields: Sequence[str], *, max_bytes: int) -> Read[list[bytes | None]]:
    """Fields of a hash, of at most ``max_bytes`` each."""
    return Read(("EVAL", READ_FIELDS, 1, key, max_bytes, *fields), key, max_bytes, list)


def hash_read(key: str, *, max_bytes: int) -> Read[dict[bytes, bytes]]:
    """Alternating names and values come as a dict. ``max_bytes``: of the whole hash."""

    def decode(reply: Any) -> dict[bytes, bytes]:
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Read(("EVAL", BOUNDED, 1, key, max_bytes, "HGETALL"), key, max_bytes, decode)


def item_pop(key: str, *, max_bytes: int) -> Read[bytes | None]:
    """Removes the first item of a list; ``max_bytes``: of the whole list."""
    return Read(("EVAL", BOUNDED, 1, key, max_bytes, "LPOP"), key, max_bytes, lambda reply: reply)


def run_reads(client: redis.Redis, reads: Sequence[Read[Value]]) -> list[Value | NeuronValueError]:
    """Runs the reads in one round trip; a neuron's fault is returned in place of its value. Raises
    ``redis.RedisError``."""
    pipeline: Any = client.pipeline(transaction=False)
    for read in reads:
        pipeline.execute_command(*read.command)
    return _values(reads, pipeline.execute(raise_on_error=False) if reads else [])


async def run_reads_async(
    client: redis.asyncio.Redis, reads: Sequence[Read[Value]]
) -> list[Value | NeuronValueError]:
    """``run_reads`` for an asynchronous client."""
    pipeline = client.pipeline(transaction=False)
    for read in reads:
        pipeline.execute_command(*read.command)
    return _values(reads, await pipeline.execute(raise_on_error=False) if reads else [])


def _values(reads: Sequence[Read[Value]], replies: Sequence[Any]) -> list[Value | NeuronValueError]:
    values: list[Value | NeuronValueError] = []
    for read, reply in zip(reads, replies, strict=True):
        try:
            values.append(read.value(reply))
        except NeuronValueError as error:
            values.append(error)
    return values
