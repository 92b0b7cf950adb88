"""Requests to upstreams and readers of their answers, by dialect. Pure.

A new dialect is a file for its requests and answers, and a case here. Tokens are counted at
Anthropic's own path, or at vLLM's /tokenize, which helexa and SGLang have too. Sources:
https://docs.anthropic.com/en/api/messages-count-tokens and
https://docs.vllm.ai/en/latest/serving/online_serving (Tokenizer API).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event
from inference.protocol.generation import EmbeddingRequest, GenerationRequest, TokenCountRequest
from inference.wire.upstream import chat, embeddings, messages_request, ollama
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    AnswerReader,
    FrameReader,
    LinesReader,
    SseReader,
    UpstreamFaultError,
    decoded,
    tokens_of,
)
from inference.wire.upstream.chat import ChatEvents
from inference.wire.upstream.messages_events import MessagesEvents
from inference.wire.upstream.sending import Sending

EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"
JSON = "application/json"
Forwarded = GenerationRequest | EmbeddingRequest | TokenCountRequest
EMBEDDING_DIALECTS = ("openai", "ollama")
TOKEN_COUNT_DIALECTS = ("openai", "anthropic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    path: str
    """Below the upstream's URL; with ``is_unversioned`` below that without its ``/v1``."""
    is_unversioned: bool = False
    body: bytes
    reader_of: Callable[[AnswerEvents], AnswerReader]
    content_type: str = JSON
    """The expected content type. An answer of another type is read whole, like JSON."""
    frames: Callable[[], FrameReader] = LinesReader


def is_forwarded(dialect: str, request: Forwarded) -> bool:
    match request:
        case EmbeddingRequest():
            return dialect in EMBEDDING_DIALECTS
        case TokenCountRequest():
            return dialect in TOKEN_COUNT_DIALECTS
    return True


def exchange_of(dialect: str, request: Forwarded, sending: Sending) -> Exchange:
    """Raises ``ApiError`` for fields that are not translated."""
    match request:
        case EmbeddingRequest():
            return _embeddings(dialect, request, sending)
        case TokenCountRequest():
            return _token_count(dialect, request, sending)
    return _generation(dialect, request, sending)


def _generation(dialect: str, request: GenerationRequest, sending: Sending) -> Exchange:
    wants_logprobs = request.sampling.top_logprobs is not None
    if dialect == "anthropic":
        return Exchange(
            path=messages_request.PATH,
            body=messages_request.body_of(request, sending),
            reader_of=MessagesEvents,
            content_type=EVENT_STREAM,
            frames=SseReader,
        )
    if dialect == "ollama":
        return Exchange(
            path=ollama.path_of(request),
            body=ollama.body_of(request, sending),
            reader_of=lambda answer: ollama.OllamaEvents(answer, wants_logprobs=wants_logprobs),
            content_type=JSON_LINES,
        )
    return Exchange(
        path=chat.path_of(request),
        body=chat.body_of(request, sending),
        reader_of=lambda answer: ChatEvents(answer, wants_logprobs=wants_logprobs),
        content_type=EVENT_STREAM,
        frames=SseReader,
    )


def _embeddings(dialect: str, request: EmbeddingRequest, sending: Sending) -> Exchange:
    if dialect == "ollama":
        return Exchange(
            path=embeddings.OLLAMA_PATH,
            body=embeddings.ollama_body(request, sending),
            reader_of=lambda answer: embeddings.OllamaVectorsReader(answer, request),
        )
    return Exchange(
        path=embeddings.OPENAI_PATH,
        body=embeddings.openai_body(request, sending),
        reader_of=lambda answer: embeddings.OpenAIVectorsReader(answer, request),
    )


def _token_count(dialect: str, request: TokenCountRequest, sending: Sending) -> Exchange:
    counted = GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
    if dialect == "anthropic":
        return Exchange(
            path="/v1/messages/count_tokens",
            body=orjson.dumps(messages_request.prompt_of(counted, sending)),
            reader_of=lambda answer: TokenCountReader(answer, "input_tokens"),
        )
    prompt = chat.rendered_of(counted, sending)
    return Exchange(
        path="/tokenize",
        is_unversioned=True,
        body=orjson.dumps({"model": sending.model, **prompt}),
        reader_of=lambda answer: TokenCountReader(answer, "count"),
    )


class Count(msgspec.Struct):
    input_tokens: Any = None
    count: Any = None
    error: Any = None


_decode_count = msgspec.json.Decoder(Count).decode


class TokenCountReader:
    """An ``AnswerReader``. ``name``: the field with the number."""

    def __init__(self, answer: AnswerEvents, name: str) -> None:
        self._answer = answer
        self._name = name

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        found = decoded(_decode_count, data, "something else than a number of tokens")
        counted = tokens_of(msgspec.structs.asdict(found), self._name)
        if counted is None:  # llama-server's /tokenize, which reads no chat, answers so
            raise UpstreamFaultError("no number of tokens")
        self._answer.count(counted)
        return self._answer.take()
