"""Sends frames to neurons' inboxes, and rings where an inbox was empty.

    push ─▶ a task: its entries ─▶ a script: XADD each, ring when the inbox was empty
                        ▲                │
                        └── no answer ───┘  again, until the stall's limit

Unacknowledged frames are resent, and neurons drop duplicates. A large frame takes several entries,
and several calls of the script. Commands of one link keep their order, so a request is cancelled
after it was submitted.

The ring is the Celery message for ``drain_inbox``, built by hand.
``apply_async`` takes 600 µs and blocks; this takes a few and goes out through redis.asyncio. The
shape is Celery's message protocol 2 inside kombu's Redis envelope, and a test holds it against
what Celery itself writes. Source: https://docs.celeryq.dev/en/stable/internals/protocol.html.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from inference.logs.throttled import ThrottledLog
from inference.protocol import keys
from inference.protocol.generation import Cancel, InboxFrame, Submit, encode_inbox_frame
from inference.protocol.inbox_parts import Entry, inbox_entries
from inference.redis_link import LuaScript, RedisLink, redis_unavailable, until_answered
from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 128 * 1024 * 1024
ENTRIES_A_PUSH = 16
"""2 MiB."""
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


class Dispatcher:
    def __init__(self, link: RedisLink, *, stall_limit_s: float) -> None:
        self._link = link
        self._stall_limit_s = stall_limit_s
        self._log = ThrottledLog(logger, logging.WARNING, interval_s=LOG_INTERVAL_S)
        self._num_pending_bytes = 0
        self._sending: set[asyncio.Task[None]] = set()

    def push(self, neuron: str, frame: InboxFrame) -> asyncio.Task[None]:
        """Done once the frame is in the inbox; fails with ``ServiceUnavailableError`` when Redis
        did not take it within the stall's limit. When it is cancelled, the rest is not sent."""
        has_limit = isinstance(frame, Submit)
        sending = asyncio.create_task(self._send(neuron, encode_inbox_frame(frame), has_limit))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        return sending

    def cancel_soon(self, neuron: str, request_id: str) -> None:
        """Asks the neuron to drop a request, for callers that cannot wait. A lost cancellation is
        sent again when the neuron reports that it still holds the request."""
        self.push(neuron, Cancel(request_id=request_id)).add_done_callback(_log_loss)

    async def close(self, timeout_s: float) -> None:
        if self._sending:
            _, late = await asyncio.wait(set(self._sending), timeout=timeout_s)
            for sending in late:
                sending.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send(self, neuron: str, frame: bytes, has_limit: bool) -> None:
        if has_limit and self._num_pending_bytes + len(frame) > MAX_PENDING_BYTES:
            raise _too_much()
        give_up_s = asyncio.get_running_loop().time() + self._stall_limit_s
        entries = inbox_entries(frame)
        self._num_pending_bytes += len(frame)
        try:
            for start in range(0, len(entries), ENTRIES_A_PUSH):
                push = partial(self._push, neuron, entries[start : start + ENTRIES_A_PUSH])
                await until_answered(push, give_up_s=give_up_s)
        except Exception as error:
            self._log.log(neuron, f"cannot reach the inbox of {neuron}: {error}")
            raise redis_unavailable() from error
        finally:
            self._num_pending_bytes -= len(frame)

    async def _push(self, neuron: str, entries: Sequence[Entry]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        ring = ring_message(neuron, task_id=uuid.uuid4(), now=now)
        args: list[bytes | str | int] = [keys.INBOX_FRAME_FIELD, keys.INBOX_EXPIRY_S, ring]
        args += MAX_INBOX_ENTRIES, keys.INBOX_PART_FIELD
        for entry in entries:
            args += entry.get(keys.INBOX_PART_FIELD, b""), entry[keys.INBOX_FRAME_FIELD]
        inbox, queue = keys.inbox_key(neuron), keys.neuron_queue(neuron)
        await self._link.run(PUSH_SCRIPT, keys=[inbox, queue], args=args)


def _too_much() -> ServiceUnavailableError:
    limit_mib = MAX_PENDING_BYTES // 2**20
    return ServiceUnavailableError(
        "queue_full", f"{limit_mib} MiB of requests wait for Redis already; try again shortly."
    )


def _log_loss(delivered: asyncio.Task[None]) -> None:
    if not delivered.cancelled() and (error := delivered.exception()):
        logger.debug("a cancel was not delivered: %s", error)


_NO_ARGUMENTS: tuple[Any, ...] = (
    [],
    {},
    {"callbacks": None, "errbacks": None, "chain": None, "chord": None},
)
_BODY = base64.b64encode(orjson.dumps(_NO_ARGUMENTS)).decode()
_UNUSED_HEADERS = dict.fromkeys(
    ("shadow", "eta", "group", "group_index", "parent_id", "stamped_headers")
)
_ORIGIN = f"gateway{os.getpid()}@{socket.gethostname()}"


def ring_message(neuron: str, *, task_id: uuid.UUID, now: datetime.datetime) -> bytes:
    expires = now + datetime.timedelta(seconds=keys.DRAIN_INBOX_EXPIRES_S)
    name = str(task_id)
    return orjson.dumps(
        {
            "body": _BODY,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": keys.TASK_DRAIN_INBOX,
                "id": name,
                "expires": expires.isoformat(),
                "retries": 0,
                "timelimit": [None, None],
                "root_id": name,
                "argsrepr": "()",
                "kwargsrepr": "{}",
                "origin": _ORIGIN,
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamps": {},
                **_UNUSED_HEADERS,
            },
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
