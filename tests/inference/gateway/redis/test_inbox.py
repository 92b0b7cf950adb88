"""What the dispatcher writes: frames of any size in bounded entries, in their order."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio

from inference.gateway.redis.inbox import BYTES_A_PUSH, Dispatcher
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
