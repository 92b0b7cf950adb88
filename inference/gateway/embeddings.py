"""Answering a request for embeddings: parse, place, submit, and one body when the vectors are
there. Whoever leaves is noticed, and the neuron told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from inference.gateway.consumers import ApiConsumer
from inference.gateway.generation import unix_time_s
from inference.gateway.running import run_request
from inference.protocol.events import Embedded
from inference.wire import openai_embeddings
from inference.wire.errors import ApiError
from inference.wire.openai_embeddings import EmbeddingsRequest

logger = logging.getLogger("helexa.requests")

PARTS_A_TURN = 32


class EmbeddingsConsumer(ApiConsumer):
    method = "POST"

    async def answer(self, body: bytes) -> None:
        started_s = time.perf_counter()
        outcome, model, num_tokens = "cancelled", "-", 0
        try:
            request = openai_embeddings.parse(body, self.context())
            model = request.embedding.model
            embedded = await self._embed(request)
            num_tokens = embedded.usage.prompt_tokens
            outcome = "finished"
        except ApiError as error:
            outcome = error.code
            raise
        finally:
            milliseconds = (time.perf_counter() - started_s) * 1000
            logger.info(
                "%s model=%s %s embedded=%d ms=%.0f",
                self.request_id,
                model,
                outcome,
                num_tokens,
                milliseconds,
            )

    async def _embed(self, request: EmbeddingsRequest) -> Embedded:
        async with run_request(
            self.gateway, self.request_id, request.embedding, abort=self.abort
        ) as stream:
            while not isinstance(event := (await stream.next_events())[-1], Embedded):
                pass
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        await self.respond(200, await _joined(encoder.parts(event)))
        return event


async def _joined(parts: Iterable[bytes]) -> bytes:
    """Lets others run meanwhile."""
    body = bytearray()
    for number, part in enumerate(parts, start=1):
        body += part
        if number % PARTS_A_TURN == 0:
            await asyncio.sleep(0)
    return bytes(body)
