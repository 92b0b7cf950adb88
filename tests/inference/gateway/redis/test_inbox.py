"""Which frames the dispatcher writes, and the ring with them: by Celery's own format."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import uuid
from typing import Any

import redis
import redis.asyncio
from celery import Celery

from inference.gateway.redis.inbox import BYTES_A_PUSH, Dispatcher, ring_message
from inference.protocol import keys
from inference.protocol.generation import (
    Cancel,
    GenerationRequest,
    InboxFrame,
    Submit,
    TextInput,
    decode_inbox_frame,
)
from inference.protocol.inbox_parts import PART_BYTES, FrameAssembler
from inference.protocol.joining import celery_broker_url
from inference.redis_link import RedisLink


def _submit(request_id: str, num_characters: int) -> Submit:
    request = GenerationRequest(model="m", input=TextInput(texts=["x" * num_characters]))
    return Submit(
        request_id=request_id, gateway_id="g", model="m", request=request, deadline_unix_s=0.0
    )


async def test_a_large_frame_stands_in_the_inbox_in_pieces(
    redis_url: str, redis_client: redis.asyncio.Redis
) -> None:
    """A connection that carried it whole made Redis hold all of it, twice."""
    link = RedisLink(redis_url, timeout_s=60.0)
    dispatcher = Dispatcher(link, stall_limit_s=60.0)
    frames: list[InboxFrame] = [
        _submit("small", 1),
        _submit("large", 2 * BYTES_A_PUSH),
        Cancel(request_id="small"),
        _submit("last", PART_BYTES),
    ]
    await asyncio.gather(*(dispatcher.push("beast", frame) for frame in frames))
    entries: Any = await redis_client.xrange(keys.inbox_key("beast"))
    assert max(len(fields[keys.INBOX_FRAME_FIELD]) for _, fields in entries) == PART_BYTES
    assembler = FrameAssembler()
    whole = [assembler.add(fields, 0.0) for _, fields in entries]
    assert [decode_inbox_frame(frame) for frame in whole if frame is not None] == frames
    assert await redis_client.llen(keys.neuron_queue("beast")) == 1, "rung once: it was empty once"
    await dispatcher.close(1.0)
    await link.aclose()


TASK_ID = uuid.UUID("6ad19bd1-4d9c-4a25-9c2b-15b2ab1bb8b5")
NOW = datetime.datetime(2030, 5, 1, 12, 0, tzinfo=datetime.UTC)

VOLATILE = {"id", "root_id", "expires", "origin", "correlation_id", "reply_to", "delivery_tag"}
"""Values that differ from message to message; their types must not."""


def celery_sends(url: str) -> dict[str, Any]:
    app = Celery(broker=celery_broker_url(url), set_as_current=False)
    app.conf.task_ignore_result = True
    app.send_task(
        keys.TASK_DRAIN_INBOX,
        queue=keys.neuron_queue("beast"),
        expires=keys.DRAIN_INBOX_EXPIRES_S,
        ignore_result=True,
    )
    app.close()
    with redis.Redis.from_url(url) as client:
        raw = client.rpop(keys.neuron_queue("beast"))
    message: dict[str, Any] = json.loads(raw)  # type: ignore[arg-type]
    return message


def shape(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: shape(item, key) for key, item in sorted(value.items())}
    return type(value).__name__ if name in VOLATILE else value


def test_the_ring_is_what_celery_sends_and_expires(redis_url: str) -> None:
    ours = json.loads(ring_message("beast", task_id=TASK_ID, now=NOW))
    expires = datetime.datetime.fromisoformat(ours["headers"]["expires"])
    assert expires - NOW == datetime.timedelta(seconds=keys.DRAIN_INBOX_EXPIRES_S)
    theirs = celery_sends(redis_url)
    bodies = [json.loads(base64.b64decode(message.pop("body"))) for message in (ours, theirs)]
    assert bodies[0] == bodies[1]
    assert shape(ours) == shape(theirs)
