"""Answering rerank and score: parse, place, submit, and one body when the scores are there."""

from __future__ import annotations

from functools import partial

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.consumers.embed import all_vectors
from inference.gateway.consumers.generate import unix_time_s
from inference.gateway.gateway import Gateway
from inference.gateway.request.run import run_request
from inference.wire.vllm import rerank
from inference.wire.vllm import score as vllm_score


class ScoreConsumer(ApiConsumer):
    method = "POST"

    endpoint = "/v1/score"

    async def answer(self, body: bytes) -> None:
        await self.answer_with_scores(await self.parsed(vllm_score.parse, body))

    async def answer_with_scores(
        self, request: vllm_score.ScoringRequest | rerank.RerankRequest
    ) -> None:
        async with run_request(self.gateway, self.call, request.score, abort=self.abort) as stream:
            embedded = await all_vectors(stream)
        encoder = request.body_encoder(request_id=self.request_id, clock=unix_time_s)
        await self.respond(200, encoder.encode(embedded))


class RerankConsumer(ScoreConsumer):
    def __init__(self, *, gateway: Gateway, version: int = 1) -> None:
        """``version`` is that of Cohere's API: the second returns no documents unless asked."""
        super().__init__(gateway=gateway, endpoint=f"/v{version}/rerank")
        self._version = version

    async def answer(self, body: bytes) -> None:
        parse = partial(rerank.parse, version=self._version)
        await self.answer_with_scores(await self.parsed(parse, body))
