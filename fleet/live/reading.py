"""Reads the neurons' reports and desired states from Redis, for asyncio and for threads.

    ZRANGE helexa:neurons, HGETALL helexa:neurons:wishes, GET helexa:turns
      └─▶ GETRANGE of their heartbeats

A heartbeat's key expires a few seconds after the neuron falls silent, so an existing one is alive
by Redis' clock alone. A neuron may write values of any size and type under its own keys: a text is
read up to a limit in bytes, and a script in Redis measures other values first, so an oversized one
costs its reader nothing. A value of another type is an error of that neuron alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

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
from fleet.live.reports import (
    MAX_REPORT_BYTES,
    NeuronValueError,
    Report,
    load_orders,
    printable,
    read_report,
    value_problem,
)
from fleet.live.snapshot import FleetSnapshot, build_snapshot
from inference.logs import ThrottledLog
from inference.protocol import keys
from inference.protocol.delivery import MAX_HELD_BYTES, decode_held_requests
from inference.protocol.heartbeat import WaitingReport, decode_waiting_report
from inference.protocol.neuron_tasks import CacheReport, decode_cache_report
from inference.protocol.refusals import COUNTED_BY_KEY, Refused, by_code, newest_keys, sum_of
from inference.redis_link import MAX_VALUE_BYTES, connect_exempt
from inference.request_ids import REQUEST_ID

logger = logging.getLogger(__name__)
_log = ThrottledLog(logger, logging.WARNING)

REDIS_TIMEOUT_S = 5.0
MAX_NEURONS = 1000
"""The most recent ones: a neuron that registers false names cannot exceed this."""

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


@dataclass(frozen=True, slots=True)
class Read(Generic[Value]):
    command: tuple[bytes | str | int, ...]
    key: str
    max_bytes: int
    decode: Callable[[Any], Value]

    def value(self, reply: Any) -> Value:
        """Raises ``NeuronValueError`` for the neuron's faults; errors of Redis as they are."""
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

    def decode(reply: Any) -> bytes | None:
        data = reply.encode() if isinstance(reply, str) else bytes(reply)
        if len(data) > max_bytes:
            raise NeuronValueError(f"{key} holds more than {max_bytes} bytes")
        return data or None

    return Read(("GETRANGE", key, 0, max_bytes), key, max_bytes, decode)


def fields_read(key: str, fields: Sequence[str], *, max_bytes: int) -> Read[list[bytes | None]]:
    """``max_bytes``: of each field."""
    return Read(("EVAL", READ_FIELDS, 1, key, max_bytes, *fields), key, max_bytes, list)


def hash_read(key: str, *, max_bytes: int) -> Read[dict[bytes, bytes]]:
    """``max_bytes``: of the whole hash."""

    def decode(reply: Any) -> dict[bytes, bytes]:
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Read(("EVAL", BOUNDED, 1, key, max_bytes, "HGETALL"), key, max_bytes, decode)


def item_pop(key: str, *, max_bytes: int) -> Read[bytes | None]:
    """``max_bytes``: of the whole list."""
    return Read(("EVAL", BOUNDED, 1, key, max_bytes, "LPOP"), key, max_bytes, lambda reply: reply)


def run_reads(client: redis.Redis, reads: Sequence[Read[Value]]) -> list[Value | NeuronValueError]:
    """A neuron's fault is returned in place of its value. Raises ``redis.RedisError``."""
    pipeline: Any = client.pipeline(transaction=False)
    for read in reads:
        pipeline.execute_command(*read.command)
    return _values(reads, pipeline.execute(raise_on_error=False) if reads else [])


async def run_reads_async(
    client: redis.asyncio.Redis, reads: Sequence[Read[Value]]
) -> list[Value | NeuronValueError]:
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


@dataclass(frozen=True, slots=True)
class LiveFleet:
    reports: tuple[Report, ...]
    desired_states: DesiredStates | None
    time_slices: tuple[TimeSlice, ...] = ()

    def snapshot(self, before: FleetSnapshot | None = None) -> FleetSnapshot:
        """``before``: its desired states replace lost ones. Unreadable reports count as offline."""
        known = NO_DESIRED_STATES if before is None else before.desired_states
        heartbeats = [report.heartbeat for report in self.reports if report.heartbeat is not None]
        return build_snapshot(heartbeats, self.desired_states or known, self.time_slices)


async def read_snapshot(
    client: redis.asyncio.Redis, *, before: FleetSnapshot | None = None
) -> FleetSnapshot:
    """Raises ``SnapshotUnavailableError`` when Redis does not answer."""
    with redis_answers():
        replies = await _ask_for_names(client).execute()
        names, desired_states, time_slices = _names_states_slices(replies)
        payloads = await run_reads_async(client, _heartbeat_reads(names))
    return LiveFleet(_reports(names, payloads), desired_states, time_slices).snapshot(before)


def read_snapshot_sync(client: redis.Redis) -> FleetSnapshot:
    return read_live_fleet(client).snapshot()


def read_live_fleet(client: redis.Redis) -> LiveFleet:
    """Raises ``SnapshotUnavailableError`` when Redis does not answer."""
    with redis_answers():
        names, desired_states, time_slices = _names_states_slices(_ask_for_names(client).execute())
        payloads = run_reads(client, _heartbeat_reads(names))
    return LiveFleet(_reports(names, payloads), desired_states, time_slices)


@contextmanager
def redis_answers() -> Iterator[None]:
    """Raises ``SnapshotUnavailableError`` where it does not."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise SnapshotUnavailableError("Redis does not answer") from error


def read_waiting(client: redis.Redis) -> dict[str, WaitingReport]:
    """Keys are gateways' ids, also of dead ones. Raises ``SnapshotUnavailableError``."""
    fields: dict[bytes | str, bytes]
    with redis_answers():
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
    """Also deletes the reports of dead gateways. Raises ``SnapshotUnavailableError``."""
    encoded = encode_time_slices(tuple(time_slices))
    with redis_answers():
        pipeline = client.pipeline(transaction=False)
        pipeline.set(keys.TIME_SLICES, encoded, ex=keys.TIME_SLICES_EXPIRY_S)
        if gone_gateways:
            pipeline.hdel(keys.WAITING, *gone_gateways)
        pipeline.execute()


@cache
def redis_client() -> redis.Redis:
    """For threads; reconnects after a loss."""
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
    """``False`` while Redis does not answer."""
    try:
        return bool(redis_client().exists(keys.heartbeat_key(neuron_name)))
    except (redis.RedisError, OSError):
        return False


def held_request_ids(neuron_name: str) -> list[str]:
    """Reads the neuron's last list; empty where that cannot be read."""
    try:
        lists = hash_read(keys.held_key(neuron_name), max_bytes=MAX_HELD_BYTES).run(redis_client())
        held = [decode_held_requests(one) for one in lists.values()]
    except (NeuronValueError, msgspec.DecodeError, redis.RedisError, OSError):
        return []
    return sorted(filter(REQUEST_ID.fullmatch, (one for each in held for one in each.request_ids)))


def read_cache_reports(client: redis.Redis, neurons: Sequence[str]) -> dict[str, CacheReport]:
    """Keys are neurons. Leaves out malformed reports and those of another neuron. Raises
    ``SnapshotUnavailableError``."""
    reads = [text_read(keys.downloads_key(neuron), max_bytes=MAX_VALUE_BYTES) for neuron in neurons]
    with redis_answers():
        payloads = run_reads(client, reads)
    reports = {}
    for neuron, payload in zip(neurons, payloads, strict=True):
        if payload is None:
            continue
        try:
            if isinstance(payload, NeuronValueError):
                raise ValueError(str(payload))
            reports[neuron] = _cache_report(neuron, payload)
        except ValueError as error:
            _log.log(neuron, f"the downloads of {neuron} are not understood: {error}")
    return reports


def _cache_report(neuron: str, payload: bytes) -> CacheReport:
    report = decode_cache_report(payload)
    if report.neuron != neuron:
        raise ValueError("it is another neuron's")
    if problem := value_problem(report):
        raise ValueError(problem)
    return printable(report)


def read_refusals(client: redis.Redis, *, hours: int) -> dict[Refused, int]:
    """Raises ``redis.RedisError``."""
    return only_refused(read_counts(client, hours=hours))


def only_refused(counts: Mapping[Refused, int]) -> dict[Refused, int]:
    """Requests that crashed a worker are left out: ``metering.ledger.entries`` has them as
    failed."""
    plain = by_code(counts)
    return {one: number for one, number in plain.items() if one.code not in COUNTED_BY_KEY}


def read_counts(client: redis.Redis, *, hours: int) -> dict[Refused, int]:
    """Includes the present hour; reads a day at most. Raises ``redis.RedisError``."""
    pipeline = client.pipeline(transaction=False)
    for key in newest_keys(time.time(), hours):
        pipeline.hgetall(key)
    return sum_of(pipeline.execute())
