"""How many tokens a chat's prompt has, as an upstream counts it: the body, and the answer. Pure.

Anthropic's own path, and vLLM's /tokenize, which helexa and SGLang have too. Sources:
https://docs.anthropic.com/en/api/messages-count-tokens and
https://docs.vllm.ai/en/latest/serving/online_serving (Tokenizer API).
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event
from inference.protocol.generation import GenerationRequest, TokenCountRequest
from inference.wire.upstream import chat_request, messages_request
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamErrorObject,
    UpstreamFaultError,
    tokens_of,
)
from inference.wire.upstream.sending import Sending

MESSAGES_PATH = "/v1/messages/count_tokens"
TOKENIZE_PATH = "/tokenize"
MESSAGES_COUNT, TOKENIZE_COUNT = "input_tokens", "count"
"""The fields of the two answers that have the number."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def messages_body(request: TokenCountRequest, sending: Sending) -> bytes:
    """Raises ``ApiError`` for fields that are not translated."""
    return orjson.dumps(messages_request.prompt_of(_generation(request), sending))


def tokenize_body(request: TokenCountRequest, sending: Sending) -> bytes:
    """Raises ``ApiError`` for fields that are not translated."""
    prompt = chat_request.rendered_of(_generation(request), sending)
    return orjson.dumps({"model": sending.model, **prompt})


class TokenCountReader:
    """An ``AnswerReader``."""

    def __init__(self, answer: AnswerEvents, name: str) -> None:
        """``name``: the field that has the number."""
        self._answer = answer
        self._name = name

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        try:
            found = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamFaultError("something else than a number of tokens") from error
        if found.get("error") is not None:
            raise UpstreamErrorObject(found["error"])
        counted = tokens_of(found, self._name)
        if counted is None:  # llama-server's /tokenize, which reads no chat, answers so
            raise UpstreamFaultError("no number of tokens")
        self._answer.count(counted)
        return self._answer.take()


def _generation(request: TokenCountRequest) -> GenerationRequest:
    """The request whose prompt is counted."""
    return GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
