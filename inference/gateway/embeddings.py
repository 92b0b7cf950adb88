"""Answering a request for embeddings: parse, place, submit, and one body when the vectors are
there. Whoever leaves is noticed, and the neuron told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from inference.gateway.consumers import ApiConsumer
from inference.gateway.generation import unix_time_s
from inference.gateway.running import run_request
from inference.protocol.events import Embedded
from inference.wire import openai_embeddings

PARTS_A_TURN = 32


class EmbeddingsConsumer(ApiConsumer):
    method = "POST"

    endpoint = "/v1/embeddings"

    async def answer(self, body: bytes) -> None:
        request = self.parsed(openai_embeddings.parse, body)
        async with run_request(
            self.gateway, self.call, request.embedding, abort=self.abort
        ) as stream:
            while not isinstance(event := (await stream.next_events())[-1], Embedded):
                pass
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        await self.respond(200, await joined(encoder.parts(event)))


async def joined(parts: Iterable[bytes]) -> bytes:
    """Lets others run meanwhile."""
    body = bytearray()
    for number, part in enumerate(parts, start=1):
        body += part
        if number % PARTS_A_TURN == 0:
            await asyncio.sleep(0)
    return bytes(body)
