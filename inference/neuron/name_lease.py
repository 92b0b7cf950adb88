"""The lease on a neuron's name. Two lives of one name would corrupt each other's queue, inbox,
specs and heartbeat, so one holds it and the other does not start.

    acquire ─▶ held by nobody, or by this machine's last life ─▶ ours ─▶ renewed by each beat
                 │                                                └────▶ another's: NameLostError
                 └─ held: wait until it is renewed (NameHeldError) or has expired (ours)

Redis' clock expires it a few seconds after the last beat. A Redis that stood still has let it
expire: whoever beats first has it again. What a beat writes is written in one script with a look at
the lease, so a life that has lost its name writes nothing more over the next one's words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis

from inference.neuron.earlier_life import EarlierLife
from inference.neuron.redis_client import ensure_trusted
from inference.protocol.keys import HEARTBEAT_EXPIRY_S, lease_key

log = logging.getLogger(__name__)

LEASE_EXPIRY_MS = int(HEARTBEAT_EXPIRY_S * 1000)
POLL_S = 0.25

ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and held ~= ARGV[3] then
    return {held, redis.call('PTTL', KEYS[1])}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {}
"""
"""KEYS: lease. ARGV: ours, expiry, the last life's on this machine. Returns another's, if any."""
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', unpack(KEYS))
end
"""
"""KEYS: lease, and what goes with it."""


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The lease's value, as JSON."""

    epoch: str
    host: str
    process_id: int
    since_unix_s: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_unix_s, UTC).isoformat(" ", "seconds")
        life = self.epoch[:8]
        return f"host {self.host}, process {self.process_id}, epoch {life}, since {since}"


class NameHeldError(Exception):
    """Another neuron has the name and is alive."""

    def __init__(self, neuron: str, holder: str) -> None:
        super().__init__(
            f"another neuron is named {neuron}: {holder}. Stop that one, or give this one another "
            "name with --name"
        )


class NameLostError(Exception):
    """This neuron was silent for so long that another took its name."""

    def __init__(self, neuron: str, holder: str) -> None:
        super().__init__(f"another neuron has taken the name {neuron}: {holder}")


class NameLease:
    def __init__(self, client: redis.Redis, *, neuron: str, epoch: str) -> None:
        self.neuron = neuron
        self.key = lease_key(neuron)
        holder = LeaseHolder(
            epoch=epoch,
            host=socket.gethostname(),
            process_id=os.getpid(),
            since_unix_s=round(time.time(), 3),
        )
        self.value = msgspec.json.encode(holder)
        """What the key holds while it is ours."""
        self._client = client

    def acquire(
        self, earlier: EarlierLife | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Returns when the name is ours; waits for an absent Redis, and for the lease of a life
        that died to expire. Raises ``NameHeldError``, ``RedisUntrustedError``."""
        last_life = b"" if earlier is None else earlier.lease_value
        last_left_ms: int | None = None
        is_reaching = True
        while True:
            try:
                held, left_ms = self._try(last_life)
            except redis.RedisError as error:
                ensure_trusted(error)
                if is_reaching:
                    log.error("the name %s waits for Redis: %s", self.neuron, error)
                is_reaching, last_left_ms = False, None
            else:
                is_reaching = True
                if held is None:
                    break
                if last_left_ms is None:
                    log.warning(
                        "the name %s is held: %s; waiting %.1f s for a sign of life",
                        self.neuron,
                        in_words(held),
                        left_ms / 1000,
                    )
                elif left_ms > last_left_ms:
                    raise NameHeldError(self.neuron, in_words(held))
                last_left_ms = left_ms
            sleep(POLL_S)
        if earlier is not None:
            earlier.write(self.value)

    def renew(self) -> None:
        """Raises ``NameLostError``, ``redis.RedisError``."""
        held, _ = self._try(b"")
        if held is not None:
            raise NameLostError(self.neuron, in_words(held))

    def release(self, *keys: str) -> None:
        """With ``keys``, which are deleted where the name is still ours. Raises
        ``redis.RedisError``."""
        self._client.eval(RELEASE, 1 + len(keys), self.key, *keys, self.value)

    def _try(self, last_life: bytes) -> tuple[bytes | None, int]:
        """Whoever holds it instead, and for how many ms it does at least."""
        reply: Any = self._client.eval(ACQUIRE, 1, self.key, self.value, LEASE_EXPIRY_MS, last_life)
        return (reply[0], int(reply[1])) if reply else (None, 0)


def in_words(value: bytes) -> str:
    with contextlib.suppress(msgspec.DecodeError, ValueError, OverflowError):
        return str(msgspec.json.decode(value, type=LeaseHolder))
    return "it does not say who it is"
