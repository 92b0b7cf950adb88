"""Tokenizes, detokenizes, and counts the tokens of prompts.

    parse ─▶ run_request ─▶ Tokenized | TokensCounted ─▶ one body

The neuron counts with the model's own template and tokenizer, so the count is that of the same
request. The engine takes no part.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from inference.gateway.consumers.api_consumer import ApiConsumer
from inference.gateway.gateway import Gateway
from inference.gateway.responses.store import ResponseStore
from inference.protocol.events import Tokenized, TokensCounted
from inference.protocol.generation import TokenCountRequest, TokenizeRequest
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import RequestContext
from inference.wire.errors import MissingParameterError
from inference.wire.openai import errors as openai_errors
from inference.wire.openai.responses import request as openai_responses
from inference.wire.vllm import tokenize as vllm_tokenize
from metering.principal import Principal


class TokenizeConsumer(ApiConsumer):
    method = "POST"
    endpoint = "/tokenize"

    _parse: Callable[[bytes, RequestContext], TokenizeRequest] = staticmethod(vllm_tokenize.parse)
    _write: Callable[[Tokenized], bytes] = staticmethod(vllm_tokenize.body)

    async def answer(self, body: bytes) -> None:
        request = await self.read(self._parse, body)
        if request.model == vllm_tokenize.ANY_MODEL:
            model = await only_model(self.gateway, self.call.who)
            request = msgspec.structs.replace(request, model=model)
        last = await self.last_event(request)
        assert isinstance(last, Tokenized), "tokens were answered with something else"
        await self.respond(200, self._write(last))


class TokenizerInfoConsumer(ApiConsumer):
    endpoint = "/tokenizer_info"

    async def answer(self, body: bytes) -> None:
        model = self.query.get("model") or await only_model(self.gateway, self.call.who)
        last = await self.last_event(vllm_tokenize.settings_request(model))
        assert isinstance(last, Tokenized), "settings were answered with something else"
        await self.respond(200, vllm_tokenize.settings_body(last))


class DetokenizeConsumer(TokenizeConsumer):
    endpoint = "/detokenize"
    _parse = staticmethod(vllm_tokenize.parse_back)
    _write = staticmethod(vllm_tokenize.body_back)


async def only_model(gateway: Gateway, who: Principal) -> str:
    """The one that is loaded of those that the caller may use, or the one that is offered. Raises
    ``MissingParameterError`` where there are none or several."""
    names = {entry.name for entry in await gateway.catalogue.entries() if who.may_use(entry)}
    snapshot = await gateway.liveness.snapshot()
    replicas = [replica for neuron in snapshot.neurons for replica in neuron.replicas]
    loaded = {one.model for one in replicas if one.status is ReplicaStatus.READY} & names
    for found in (loaded, names):
        if len(found) == 1:
            return found.pop()
    raise MissingParameterError("model")


class MessageTokenCountConsumer(ApiConsumer):
    method = "POST"
    endpoint = "/v1/messages/count_tokens"
    errors = anthropic_errors

    async def answer(self, body: bytes) -> None:
        counted = await self.counted(await self.read(anthropic_messages.parse_count, body))
        await self.respond(200, anthropic_messages.count_body(counted))

    async def counted(self, request: TokenCountRequest) -> int:
        last = await self.last_event(request)
        assert isinstance(last, TokensCounted), "a count was answered with something else"
        return last.prompt_tokens


class ResponseTokenCountConsumer(MessageTokenCountConsumer):
    errors = openai_errors
    endpoint = "/v1/responses/input_tokens"

    def __init__(self, *, gateway: Gateway, store: ResponseStore) -> None:
        super().__init__(gateway=gateway)
        self._store = store

    async def answer(self, body: bytes) -> None:
        asked = await self.read(openai_responses.parse_count, body)
        whole = await self._store.continued(asked, self.call.who)
        counted = await self.counted(openai_responses.count_of(whole))
        await self.respond(200, openai_responses.count_body(counted))
