"""Reading the fleet's heartbeats out of Redis, for asyncio and for threads.

One ZRANGE and one MGET each; the building is shared and pure. A heartbeat's key expires a few
seconds after the neuron falls silent, so what can be read is alive by Redis' clock alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import cast

import msgspec
import redis
import redis.asyncio
from django.conf import settings

from fleet.errors import SnapshotUnavailableError
from fleet.snapshot import FleetSnapshot, build_snapshot
from inference.protocol import keys
from inference.protocol.heartbeat import NeuronHeartbeat, decode_heartbeat

logger = logging.getLogger(__name__)

REDIS_TIMEOUT_S = 5.0


async def read_snapshot(client: redis.asyncio.Redis) -> FleetSnapshot:
    """Raises ``SnapshotUnavailableError`` when Redis does not answer."""
    try:
        names = cast(list[bytes | str], await client.zrange(keys.NEURONS, 0, -1))
        payloads = await client.mget(_heartbeat_keys(names)) if names else []
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    return build_snapshot(_decode(payloads))


def read_snapshot_sync(client: redis.Redis) -> FleetSnapshot:
    """``read_snapshot`` for threads."""
    return build_snapshot(read_heartbeats(client))


def read_heartbeats(client: redis.Redis) -> list[NeuronHeartbeat]:
    """The heartbeats of every neuron that is alive, whole, for those who record them.
    Raises ``SnapshotUnavailableError`` when Redis does not answer."""
    try:
        names = cast(list[bytes | str], client.zrange(keys.NEURONS, 0, -1))
        payloads = client.mget(_heartbeat_keys(names)) if names else []
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    return _decode(payloads)


@cache
def redis_client() -> redis.Redis:
    """This process' client for threads; connects on first use and again after a loss."""
    return redis.Redis.from_url(
        settings.CONFIG.redis_url,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
    )


def _heartbeat_keys(names: Iterable[bytes | str]) -> list[str]:
    return [
        keys.heartbeat_key(name.decode() if isinstance(name, bytes) else name) for name in names
    ]


def _decode(payloads: Iterable[bytes | str | None]) -> list[NeuronHeartbeat]:
    """A neuron whose words we cannot read (another version) is as good as away, and is named."""
    heartbeats = []
    for payload in payloads:
        if payload is None:
            continue
        try:
            heartbeats.append(decode_heartbeat(payload))
        except msgspec.DecodeError as error:
            logger.warning("ignoring a heartbeat that does not decode: %s", error)
    return heartbeats
