"""Answering how many tokens a request's prompt has: rendered and tokenized where its model is.

    asked ─▶ run_request ─▶ TokensCounted ─▶ one body

The neuron counts with the model's own template and tokenizer, so the number is the one that the
same request would be held to. Its engine is not asked.
"""

from __future__ import annotations

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.request.run import run_request
from inference.gateway.responses.store import ResponseStore
from inference.protocol.events import TokensCounted
from inference.protocol.generation import TokenCountRequest
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.openai.responses import count as openai_responses_count


class TokenCountConsumer(ApiConsumer):
    method = "POST"

    async def answer(self, body: bytes) -> None:
        request = await self.asked(body)
        async with run_request(self.gateway, self.call, request, abort=self.abort) as stream:
            *_, last = await stream.next_events()
            assert isinstance(last, TokensCounted), "a count was answered with something else"
        await self.respond(200, self.count_body(last.prompt_tokens))

    async def asked(self, body: bytes) -> TokenCountRequest:
        """Raises ``ApiError``."""
        raise NotImplementedError

    def count_body(self, num_tokens: int) -> bytes:
        raise NotImplementedError


class MessageTokenCountConsumer(TokenCountConsumer):
    """POST /v1/messages/count_tokens."""

    endpoint = "/v1/messages/count_tokens"

    def __init__(self, *, gateway: Gateway) -> None:
        super().__init__(gateway=gateway, errors=anthropic_errors)

    async def asked(self, body: bytes) -> TokenCountRequest:
        return await self.read(anthropic_messages.parse_count, body)

    def count_body(self, num_tokens: int) -> bytes:
        return anthropic_messages.count_body(num_tokens)


class ResponseTokenCountConsumer(TokenCountConsumer):
    """POST /v1/responses/input_tokens, the stored turns that it builds on included."""

    endpoint = "/v1/responses/input_tokens"

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__(gateway=gateway)
        self._store = store

    async def asked(self, body: bytes) -> TokenCountRequest:
        asked = await self.read(openai_responses_count.parse, body)
        return openai_responses_count.count_of(await self._store.continued(asked, self.call.who))

    def count_body(self, num_tokens: int) -> bytes:
        return openai_responses_count.body(num_tokens)
