"""Answering which tokens a text has, or which text some tokens are: asked where the model is.

parse ─▶ run_request ─▶ Tokenized ─▶ one body
"""

from __future__ import annotations

from collections.abc import Callable

from inference.gateway.consumers import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.running import run_request
from inference.protocol.events import Tokenized
from inference.protocol.generation import TokenizeRequest
from inference.wire import vllm_tokenize
from inference.wire.dialect import RequestContext


class TokenizeConsumer(ApiConsumer):
    """POST /tokenize."""

    method = "POST"
    endpoint = "/tokenize"

    _parse: Callable[[bytes, RequestContext], TokenizeRequest]
    _write: Callable[[Tokenized], bytes]

    def __init__(self, *, gateway: Gateway) -> None:
        super().__init__(gateway=gateway)
        self._parse, self._write = vllm_tokenize.parse, vllm_tokenize.body

    async def answer(self, body: bytes) -> None:
        request = self.parsed(self._parse, body)
        async with run_request(self.gateway, self.call, request, abort=self.abort) as stream:
            *_, last = await stream.next_events()
            assert isinstance(last, Tokenized), "tokens were answered with something else"
        await self.respond(200, self._write(last))


class DetokenizeConsumer(TokenizeConsumer):
    """POST /detokenize."""

    endpoint = "/detokenize"

    def __init__(self, *, gateway: Gateway) -> None:
        super().__init__(gateway=gateway)
        self._parse, self._write = vllm_tokenize.parse_back, vllm_tokenize.body_back
