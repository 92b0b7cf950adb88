"""Reads the neurons' reports and desired states from Redis, for asyncio and for threads.

    ZRANGE helexa:neurons, HGETALL helexa:neurons:wishes, GET helexa:turns
        └─▶ GETRANGE of their heartbeats

Two round trips; the building is shared and pure. A heartbeat's key expires a few seconds after the
neuron falls silent, so an existing one is alive by Redis' clock alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import redis
import redis.asyncio
from django.conf import settings

from fleet.errors import SnapshotUnavailableError
from fleet.live.desired_state import (
    NO_DESIRED_STATES,
    DesiredStates,
    TimeSlice,
    decode_desired_states,
    decode_time_slices,
    encode_time_slices,
)
from fleet.live.load_orders import load_orders
from fleet.live.neuron_reads import (
    NeuronValueError,
    Read,
    hash_read,
    run_reads,
    run_reads_async,
    text_read,
)
from fleet.live.reports import MAX_REPORT_BYTES, Report, read_report
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from inference.logs import ThrottledLog
from inference.protocol import keys
from inference.protocol.heartbeat import WaitingReport, decode_waiting_report
from inference.protocol.held import MAX_HELD_BYTES, decode_held_requests
from inference.redis_link import connect_exempt
from inference.request_ids import REQUEST_ID

logger = logging.getLogger(__name__)
_log = ThrottledLog(logger, logging.WARNING)

REDIS_TIMEOUT_S = 5.0
MAX_NEURONS = 1000
"""The most recent ones: a neuron that registers false names cannot exceed this."""


@dataclass(frozen=True, slots=True)
class LiveFleet:
    """The contents of Redis at one moment. ``desired_states`` is ``None`` where none are
    published."""

    reports: tuple[Report, ...]
    desired_states: DesiredStates | None
    time_slices: tuple[TimeSlice, ...] = ()

    def snapshot(self, before: FleetSnapshot | None = None) -> FleetSnapshot:
        """``before``: its desired states are used if Redis has lost them. Neurons with unreadable
        reports count as offline."""
        known = NO_DESIRED_STATES if before is None else before.desired_states
        heartbeats = [report.heartbeat for report in self.reports if report.heartbeat is not None]
        return build_snapshot(heartbeats, self.desired_states or known, self.time_slices)


async def read_snapshot(
    client: redis.asyncio.Redis, *, before: FleetSnapshot | None = None
) -> FleetSnapshot:
    """Raises ``SnapshotUnavailableError`` when Redis does not answer."""
    with _redis_answers():
        replies = await _ask_for_names(client).execute()
        names, desired_states, time_slices = _names_states_slices(replies)
        payloads = await run_reads_async(client, _heartbeat_reads(names))
    return LiveFleet(_reports(names, payloads), desired_states, time_slices).snapshot(before)


def read_snapshot_sync(client: redis.Redis) -> FleetSnapshot:
    """``read_snapshot`` for threads."""
    return read_live_fleet(client).snapshot()


def read_live_fleet(client: redis.Redis) -> LiveFleet:
    """Every neuron's whole report. Raises ``SnapshotUnavailableError`` when Redis does not
    answer."""
    with _redis_answers():
        names, desired_states, time_slices = _names_states_slices(_ask_for_names(client).execute())
        payloads = run_reads(client, _heartbeat_reads(names))
    return LiveFleet(_reports(names, payloads), desired_states, time_slices)


@contextmanager
def _redis_answers() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error


def read_waiting(client: redis.Redis) -> dict[str, WaitingReport]:
    """Waiting requests by gateway's id; dead gateways may be among them. Raises
    ``SnapshotUnavailableError``."""
    fields: dict[bytes | str, bytes]
    with _redis_answers():
        fields = client.hgetall(keys.WAITING)  # type: ignore[assignment]
    reports = {}
    for name, payload in fields.items():
        try:
            gateway_id = name.decode() if isinstance(name, bytes) else name
            reports[gateway_id] = decode_waiting_report(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.log("waiting", f"ignoring what waits at a gateway, which does not decode: {error}")
    return reports


def publish_time_slices(
    client: redis.Redis, time_slices: Sequence[TimeSlice], gone_gateways: Sequence[str] = ()
) -> None:
    """Publishes the time slices to every gateway, and deletes the reports of dead gateways. Raises
    ``SnapshotUnavailableError``."""
    encoded = encode_time_slices(tuple(time_slices))
    with _redis_answers():
        pipeline = client.pipeline(transaction=False)
        pipeline.set(keys.TIME_SLICES, encoded, ex=keys.TIME_SLICES_EXPIRY_S)
        if gone_gateways:
            pipeline.hdel(keys.WAITING, *gone_gateways)
        pipeline.execute()


@cache
def redis_client() -> redis.Redis:
    """This process' client for threads; connects on first use and again after a loss."""
    return redis.Redis.from_url(
        settings.CONFIG.redis_url,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        redis_connect_func=connect_exempt,
    )


def _ask_for_names(client: Any) -> Any:
    pipeline = client.pipeline(transaction=False)
    pipeline.zrange(keys.NEURONS, 0, MAX_NEURONS - 1, desc=True)
    pipeline.hgetall(keys.NEURON_DESIRED_STATES)
    pipeline.get(keys.TIME_SLICES)
    return pipeline


def _names_states_slices(
    replies: Sequence[Any],
) -> tuple[list[str], DesiredStates | None, tuple[TimeSlice, ...]]:
    """The names of neurons that have reported or were invited."""
    spoken, fields, time_slices = replies
    desired_states = decode_desired_states(fields)
    names = {name.decode(errors="replace") if isinstance(name, bytes) else name for name in spoken}
    names |= set(desired_states.by_neuron if desired_states else ())
    return sorted(names), desired_states, _decode_time_slices(time_slices)


def _decode_time_slices(payload: bytes | str | None) -> tuple[TimeSlice, ...]:
    try:
        return decode_time_slices(payload) if payload else ()
    except msgspec.DecodeError as error:
        _log.log("time slices", f"ignoring time slices that do not decode: {error}")
        return ()


def _heartbeat_reads(names: Sequence[str]) -> list[Read[bytes | None]]:
    return [text_read(keys.heartbeat_key(name), max_bytes=MAX_REPORT_BYTES) for name in names]


def _reports(
    names: Sequence[str], payloads: Sequence[bytes | NeuronValueError | None]
) -> tuple[Report, ...]:
    return tuple(
        read_report(name, payload, load_orders())
        for name, payload in zip(names, payloads, strict=True)
        if payload is not None
    )


def is_reporting(neuron_name: str) -> bool:
    """Whether its heartbeat exists; ``False`` while Redis does not answer."""
    try:
        return bool(redis_client().exists(keys.heartbeat_key(neuron_name)))
    except (redis.RedisError, OSError):
        return False


def held_request_ids(neuron_name: str) -> list[str]:
    """The requests that it holds, by its last list. Empty where that cannot be read."""
    try:
        lists = hash_read(keys.held_key(neuron_name), max_bytes=MAX_HELD_BYTES).run(redis_client())
        held = [decode_held_requests(one) for one in lists.values()]
    except (NeuronValueError, msgspec.DecodeError, redis.RedisError, OSError):
        return []
    return sorted(filter(REQUEST_ID.fullmatch, (one for each in held for one in each.request_ids)))
