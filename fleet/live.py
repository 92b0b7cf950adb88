"""Reading what neurons report, and what the operator wishes of them, out of Redis: for asyncio and
for threads.

    ZRANGE helexa:neurons, HGETALL helexa:neurons:wishes ─▶ MGET of their heartbeats

Two round trips; the building is shared and pure. A heartbeat's key expires a few seconds after the
neuron falls silent, so what can be read is alive by Redis' clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
import redis.asyncio
from django.conf import settings

from fleet.errors import SnapshotUnavailableError
from fleet.reports import Report, read_report
from fleet.snapshot import FleetSnapshot, build_snapshot
from fleet.wishes import NO_WISHES, Wishes, decode_wishes
from inference.protocol import keys

REDIS_TIMEOUT_S = 5.0
MAX_NEURONS = 1000
"""Those that spoke last; a neuron that writes names that are not its own fills no more."""


@dataclass(frozen=True, slots=True)
class LiveFleet:
    """What is in Redis at one moment. ``wishes`` is ``None`` where none are published."""

    reports: tuple[Report, ...]
    wishes: Wishes | None

    def snapshot(self, before: FleetSnapshot | None = None) -> FleetSnapshot:
        """``before``: its wishes hold where Redis has lost them. Reports that are not understood
        are left out: their neurons are as good as away."""
        known = NO_WISHES if before is None else before.wishes
        heartbeats = [report.heartbeat for report in self.reports if report.heartbeat is not None]
        return build_snapshot(heartbeats, self.wishes or known)


async def read_snapshot(
    client: redis.asyncio.Redis, *, before: FleetSnapshot | None = None
) -> FleetSnapshot:
    """Raises ``SnapshotUnavailableError`` when Redis does not answer."""
    try:
        names, wishes = _names_and_wishes(await _ask_for_names(client).execute())
        payloads = await client.mget(_heartbeat_keys(names)) if names else []
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    return _live_fleet(names, payloads, wishes).snapshot(before)


def read_snapshot_sync(client: redis.Redis) -> FleetSnapshot:
    """``read_snapshot`` for threads."""
    return read_live_fleet(client).snapshot()


def read_live_fleet(client: redis.Redis) -> LiveFleet:
    """Every neuron's report, whole, for those who record them. Raises ``SnapshotUnavailableError``
    when Redis does not answer."""
    try:
        names, wishes = _names_and_wishes(_ask_for_names(client).execute())
        payloads = client.mget(_heartbeat_keys(names)) if names else []
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error
    return _live_fleet(names, payloads, wishes)


@cache
def redis_client() -> redis.Redis:
    """This process' client for threads; connects on first use and again after a loss."""
    return redis.Redis.from_url(
        settings.CONFIG.redis_url,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
    )


def _ask_for_names(client: Any) -> Any:
    """A pipeline of either kind of client."""
    pipeline = client.pipeline(transaction=False)
    pipeline.zrange(keys.NEURONS, 0, MAX_NEURONS - 1, desc=True)
    pipeline.hgetall(keys.NEURON_WISHES)
    return pipeline


def _names_and_wishes(replies: Sequence[Any]) -> tuple[list[str], Wishes | None]:
    """The names of neurons that have spoken, and of those that were invited to."""
    spoken, fields = replies
    wishes = decode_wishes(fields)
    names = {name.decode(errors="replace") if isinstance(name, bytes) else name for name in spoken}
    return sorted(names | set(wishes.by_neuron if wishes else ())), wishes


def _heartbeat_keys(names: Sequence[str]) -> list[str]:
    return [keys.heartbeat_key(name) for name in names]


def _live_fleet(
    names: Sequence[str], payloads: Sequence[bytes | str | None], wishes: Wishes | None
) -> LiveFleet:
    reports = (
        read_report(name, payload)
        for name, payload in zip(names, payloads, strict=True)
        if payload is not None
    )
    return LiveFleet(tuple(reports), wishes)
