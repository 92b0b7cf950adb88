"""Answering how many tokens a request's prompt has: rendered and tokenized where its model is.

    parse ─▶ run_request ─▶ TokensCounted ─▶ encode ─▶ one body

The neuron counts with the model's own template and tokenizer, so the number is the one that the
same request would be held to. Its engine is not asked.
"""

from __future__ import annotations

from typing import Protocol

from inference.gateway.consumers import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.running import run_request
from inference.protocol.events import TokensCounted
from inference.protocol.generation import TokenCountRequest
from inference.wire.dialect import ErrorDialect, RequestContext


class ParseCount(Protocol):
    def __call__(self, body: bytes, context: RequestContext, /) -> TokenCountRequest:
        """Raises ``ApiError``."""
        ...


class EncodeCount(Protocol):
    def __call__(self, num_tokens: int, /) -> bytes: ...


class TokenCountConsumer(ApiConsumer):
    """``parse`` and ``encode`` are a dialect's."""

    method = "POST"

    def __init__(
        self, *, gateway: Gateway, parse: ParseCount, encode: EncodeCount, errors: ErrorDialect
    ) -> None:
        super().__init__(gateway=gateway, errors=errors)
        self._parse = parse
        self._encode = encode

    async def answer(self, body: bytes) -> None:
        request = self._parse(body, self.context())
        async with run_request(self.gateway, self.request_id, request, abort=self.abort) as stream:
            *_, last = await stream.next_events()
            assert isinstance(last, TokensCounted), "a count was answered with something else"
        await self.respond(200, self._encode(last.prompt_tokens))
