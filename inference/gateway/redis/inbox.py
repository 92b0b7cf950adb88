"""Sends frames to neurons' inboxes, and rings where an inbox was empty.

    push ─▶ pending[neuron] ─▶ a script: XADD each entry, ring when the inbox was empty
                 ▲                 │
                 └── no answer ────┘  again, until the stall's limit

Frames pushed while others are on their way go with the next ones: a burst costs two round trips.
Frames of one neuron keep their order. Unacknowledged ones are resent; neurons drop duplicates.

The ring is the Celery message for ``drain_inbox``, built by hand. ``apply_async`` takes 600 µs and
blocks; this takes a few and goes out through redis.asyncio. The shape is Celery's message protocol
2 inside kombu's Redis envelope, and a test holds it against what Celery itself writes. Source:
https://docs.celeryq.dev/en/stable/internals/protocol.html.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import os
import socket
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from inference.logs import ThrottledLog
from inference.protocol import keys
from inference.protocol.delivery import Entry, inbox_entries
from inference.protocol.generation import Cancel, InboxFrame, Submit, encode_inbox_frame
from inference.redis_link import LuaScript, RedisLink, redis_unavailable, until_answered
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 128 * 1024 * 1024
FRAMES_A_PUSH = 256
BYTES_A_PUSH = 2 * 1024 * 1024
MAX_INBOX_ENTRIES = 20_000
"""The most unread entries: a neuron that reads none must not fill Redis."""
LOG_INTERVAL_S = 10.0

PUSH_SCRIPT = LuaScript("""
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[4]) then
    return redis.error_reply('its neuron does not take its frames')
end
for i = 6, #ARGV, 2 do
    if ARGV[i] == '' then
        redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[i + 1])
    else
        redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[i + 1], ARGV[5], ARGV[i])
    end
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
if redis.call('XLEN', KEYS[1]) == (#ARGV - 5) / 2 then
    redis.call('LPUSH', KEYS[2], ARGV[3])
end
""")
"""KEYS: inbox, the neuron's queue. ARGV: field, expiry, ring, the most entries, field of parts;
then of each entry its part, which may be empty, and its bytes. A lost ring costs at most a second:
the heartbeat drains the inbox too."""


@dataclass(frozen=True, slots=True)
class _Outgoing:
    frame: bytes
    delivered: asyncio.Future[None]


class Dispatcher:
    def __init__(self, link: RedisLink, *, stall_limit_s: float) -> None:
        self._link = link
        self._stall_limit_s = stall_limit_s
        self._log = ThrottledLog(logger, logging.WARNING, interval_s=LOG_INTERVAL_S)
        self._num_pending_bytes = 0
        self._pending: defaultdict[str, list[_Outgoing]] = defaultdict(list)
        self._senders: dict[str, asyncio.Task[None]] = {}

    def push(self, neuron: str, frame: InboxFrame) -> asyncio.Future[None]:
        """Done once the frame is in the inbox; fails with ``ServiceUnavailableError`` when Redis
        did not take it within the stall's limit. Cancelled before it was sent, it is not sent."""
        outgoing = _Outgoing(encode_inbox_frame(frame), asyncio.get_running_loop().create_future())
        num_bytes = self._num_pending_bytes + len(outgoing.frame)
        if isinstance(frame, Submit) and num_bytes > MAX_PENDING_BYTES:
            outgoing.delivered.set_exception(_too_much())
            return outgoing.delivered
        self._num_pending_bytes = num_bytes
        self._pending[neuron].append(outgoing)
        if neuron not in self._senders:
            self._senders[neuron] = asyncio.create_task(self._send_pending(neuron))
        return outgoing.delivered

    def cancel_soon(self, neuron: str, request_id: str) -> None:
        """A lost cancellation is sent again while the neuron still lists the request."""
        self.push(neuron, Cancel(request_id=request_id)).add_done_callback(_log_loss)

    async def close(self, timeout_s: float) -> None:
        if senders := list(self._senders.values()):
            _, late = await asyncio.wait(senders, timeout=timeout_s)
            for sender in late:
                sender.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send_pending(self, neuron: str) -> None:
        try:
            while batch := self._next_batch(neuron):
                await self._send(neuron, batch)
                self._num_pending_bytes -= sum(len(outgoing.frame) for outgoing in batch)
        finally:
            del self._senders[neuron]

    def _next_batch(self, neuron: str) -> list[_Outgoing]:
        waiting = self._pending.pop(neuron, [])
        batch: list[_Outgoing] = []
        num_bytes = 0
        for position, outgoing in enumerate(waiting):
            if outgoing.delivered.cancelled():
                self._num_pending_bytes -= len(outgoing.frame)
                continue
            num_bytes += len(outgoing.frame)
            if batch and (len(batch) == FRAMES_A_PUSH or num_bytes > BYTES_A_PUSH):
                self._pending[neuron] = waiting[position:]
                break
            batch.append(outgoing)
        return batch

    async def _send(self, neuron: str, batch: list[_Outgoing]) -> None:
        give_up_s = asyncio.get_running_loop().time() + self._stall_limit_s
        try:
            for entries in _pushes(batch):
                await until_answered(partial(self._push, neuron, entries), give_up_s=give_up_s)
        except Exception as error:  # noqa: BLE001 -- it takes nothing, or sending broke
            self._fail(neuron, batch, error)
            return
        for outgoing in batch:
            if not outgoing.delivered.done():
                outgoing.delivered.set_result(None)

    async def _push(self, neuron: str, entries: Sequence[Entry]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        ring = ring_message(neuron, task_id=uuid.uuid4(), now=now)
        args: list[bytes | str | int] = [keys.INBOX_FRAME_FIELD, keys.INBOX_EXPIRY_S, ring]
        args += MAX_INBOX_ENTRIES, keys.INBOX_PART_FIELD
        for entry in entries:
            args += entry.get(keys.INBOX_PART_FIELD, b""), entry[keys.INBOX_FRAME_FIELD]
        inbox, queue = keys.inbox_key(neuron), keys.neuron_queue(neuron)
        await self._link.run(PUSH_SCRIPT, keys=[inbox, queue], args=args)

    def _fail(self, neuron: str, batch: list[_Outgoing], error: Exception) -> None:
        self._log.log(neuron, f"cannot reach the inbox of {neuron}: {error}")
        for outgoing in batch:
            if not outgoing.delivered.done():
                outgoing.delivered.set_exception(redis_unavailable())


def _pushes(batch: Sequence[_Outgoing]) -> Iterator[list[Entry]]:
    entries: list[Entry] = []
    num_bytes = 0
    for outgoing in batch:
        for entry in inbox_entries(outgoing.frame):
            num_bytes += len(entry[keys.INBOX_FRAME_FIELD])
            if entries and num_bytes > BYTES_A_PUSH:
                yield entries
                entries, num_bytes = [], len(entry[keys.INBOX_FRAME_FIELD])
            entries.append(entry)
    yield entries


def _too_much() -> ServiceUnavailableError:
    limit_mib = MAX_PENDING_BYTES // 2**20
    return ServiceUnavailableError(
        "queue_full", f"{limit_mib} MiB of requests wait for Redis already; try again shortly."
    )


def _log_loss(delivered: asyncio.Future[None]) -> None:
    if not delivered.cancelled() and (error := delivered.exception()):
        logger.debug("a cancel was not delivered: %s", error)


_NO_ARGUMENTS: tuple[Any, ...] = (
    [],
    {},
    {"callbacks": None, "errbacks": None, "chain": None, "chord": None},
)
_BODY = base64.b64encode(orjson.dumps(_NO_ARGUMENTS)).decode()
_ORIGIN = f"gateway{os.getpid()}@{socket.gethostname()}"


def ring_message(neuron: str, *, task_id: uuid.UUID, now: datetime.datetime) -> bytes:
    expires = now + datetime.timedelta(seconds=keys.DRAIN_INBOX_EXPIRES_S)
    name = str(task_id)
    return orjson.dumps(
        {
            "body": _BODY,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": _headers(name, expires.isoformat()),
            "properties": {
                "correlation_id": name,
                "reply_to": "",
                "delivery_mode": 2,
                "expiration": str(keys.DRAIN_INBOX_EXPIRES_S * 1000),
                "delivery_info": {"exchange": "", "routing_key": keys.neuron_queue(neuron)},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": name,
            },
        }
    )


def _headers(task_id: str, expires: str) -> dict[str, Any]:
    return {
        "lang": "py",
        "task": keys.TASK_DRAIN_INBOX,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": expires,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "origin": _ORIGIN,
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
