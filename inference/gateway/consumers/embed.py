"""Answers requests for embeddings, scores and ranks: parse, place, submit, and one body. That of
embeddings is encoded and sent as the vectors come. A disconnect is noticed, and cancels the request
at the neuron."""

from __future__ import annotations

from functools import partial

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.attempt import RunningRequest
from inference.gateway.request.run import run_request
from inference.gateway.server.bodies import BodyWriter
from inference.protocol.events import Embedded, EmbeddedPart
from inference.wire.dialect import PartsEncoder
from inference.wire.openai import embeddings as openai_embeddings
from inference.wire.vllm import rerank


class EmbeddingsConsumer(ApiConsumer):
    method = "POST"

    endpoint = "/v1/embeddings"

    async def answer(self, body: bytes) -> None:
        request = await self.parsed(openai_embeddings.parse, body)
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        async with run_request(
            self.gateway, self.call, request.embedding, abort=self.abort
        ) as stream:
            await write_body(stream, encoder, BodyWriter(self))


async def write_body(stream: RunningRequest, encoder: PartsEncoder, writer: BodyWriter) -> None:
    has_ended = False
    while not has_ended:
        for event in await stream.next_events():
            for part in encoder.parts(event):
                await writer.write(part)
            has_ended = isinstance(event, Embedded)
    await writer.finish()


async def all_vectors(stream: RunningRequest) -> Embedded:
    vectors: list[bytes] = []
    while True:
        for event in await stream.next_events():
            if isinstance(event, EmbeddedPart | Embedded):
                vectors += event.vectors
            if isinstance(event, Embedded):
                usage = event.usage
                return Embedded(request_id=event.request_id, vectors=vectors, usage=usage)


class ScoreConsumer(ApiConsumer):
    method = "POST"

    endpoint = "/v1/score"

    async def answer(self, body: bytes) -> None:
        await self.answer_with_scores(await self.parsed(rerank.parse_score, body))

    async def answer_with_scores(
        self, request: rerank.ScoringRequest | rerank.RerankRequest
    ) -> None:
        async with run_request(self.gateway, self.call, request.score, abort=self.abort) as stream:
            embedded = await all_vectors(stream)
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        await self.respond(200, encoder.encode(embedded))


class RerankConsumer(ScoreConsumer):
    def __init__(self, *, gateway: Gateway, version: int = 1) -> None:
        super().__init__(gateway=gateway, endpoint=f"/v{version}/rerank")
        self._version = version

    async def answer(self, body: bytes) -> None:
        parse = partial(rerank.parse, version=self._version)
        await self.answer_with_scores(await self.parsed(parse, body))
