"""Tokenizes, detokenizes, and counts the tokens of prompts.

    parse ─▶ run_request ─▶ Tokenized | TokensCounted ─▶ one body

The neuron counts with the model's own template and tokenizer, so the count is that of the same
request. The engine takes no part.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.responses.store import ResponseStore
from inference.protocol.events import Tokenized, TokensCounted
from inference.protocol.generation import TokenCountRequest, TokenizeRequest
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire import vllm
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.errors import MissingParameterError
from inference.wire.responses import request as openai_responses


class TokenizeConsumer(ApiConsumer):
    async def tokenize(self, body: bytes) -> None:
        request = await self.read(vllm.parse_tokenize, body)
        await self.respond(200, vllm.tokenized_body(await self._tokenized(request)))

    async def detokenize(self, body: bytes) -> None:
        request = await self.read(vllm.parse_detokenize, body)
        await self.respond(200, vllm.detokenized_body(await self._tokenized(request)))

    async def tokenizer_info(self, body: bytes) -> None:
        request = vllm.tokenizer_request(self.query.get("model") or vllm.ANY_MODEL)
        await self.respond(200, vllm.tokenizer_body(await self._tokenized(request)))

    async def _tokenized(self, request: TokenizeRequest) -> Tokenized:
        if request.model == vllm.ANY_MODEL:
            request = msgspec.structs.replace(request, model=await self._only_model())
        last = await self.last_event(request)
        assert isinstance(last, Tokenized), "tokens were answered with something else"
        return last

    async def _only_model(self) -> str:
        """The one that is loaded of those that the caller may use, or the one that is offered.
        Raises ``MissingParameterError`` where there are none or several."""
        entries = await self.gateway.catalogue.entries()
        names = {entry.name for entry in entries if self.call.who.may_use(entry)}
        replicas = (await self.gateway.liveness.snapshot()).replicas()
        loaded = {one.model for one in replicas if one.status is ReplicaStatus.READY} & names
        for found in (loaded, names):
            if len(found) == 1:
                return found.pop()
        raise MissingParameterError("model")


class TokenCountConsumer(ApiConsumer):
    def __init__(self, *, store: ResponseStore, **options: Any) -> None:
        super().__init__(**options)
        self._store = store

    async def count_messages(self, body: bytes) -> None:
        counted = await self._counted(await self.read(anthropic_messages.parse_count, body))
        await self.respond(200, anthropic_messages.count_body(counted))

    async def count_response(self, body: bytes) -> None:
        asked = await self.read(openai_responses.parse_count, body)
        whole = await self._store.continued(asked, self.call.who)
        counted = await self._counted(openai_responses.count_of(whole))
        await self.respond(200, openai_responses.count_body(counted))

    async def _counted(self, request: TokenCountRequest) -> int:
        last = await self.last_event(request)
        assert isinstance(last, TokensCounted), "a count was answered with something else"
        return last.prompt_tokens
