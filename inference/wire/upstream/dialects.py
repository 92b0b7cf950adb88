"""Requests to upstreams and readers of their answers, by dialect. Pure.

A new dialect is a file for its requests and answers, and a case here. Tokens are counted at
Anthropic's own path, or at vLLM's /tokenize, which helexa and SGLang have too. Sources:
https://docs.anthropic.com/en/api/messages-count-tokens and
https://docs.vllm.ai/en/latest/serving/online_serving (Tokenizer API).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event
from inference.protocol.generation import EmbeddingRequest, GenerationRequest, TokenCountRequest
from inference.wire.upstream import chat, embeddings, messages_request, ollama
from inference.wire.upstream.answer_events import (
    Answer,
    AnswerEvents,
    AnswerReader,
    LinesReader,
    SseReader,
    UpstreamFaultError,
    decoded,
    tokens_of,
)
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
    frames: Callable[[], LinesReader] = LinesReader


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
            is_ollamas = dialect == "ollama"
            body_of = embeddings.ollama_body if is_ollamas else embeddings.openai_body
            return Exchange(
                path="/api/embed" if is_ollamas else "/embeddings",
                body=body_of(request, sending),
                reader_of=partial(embeddings.VectorsReader, request=request),
            )
        case TokenCountRequest():
            return _token_count(dialect, request, sending)
    wants_logprobs = request.sampling.top_logprobs is not None
    if dialect == "ollama":
        path, body = ollama.path_and_body(request, sending)
        reader_of = partial(ollama.OllamaEvents, wants_logprobs=wants_logprobs)
        return Exchange(path=path, body=body, reader_of=reader_of, content_type=JSON_LINES)
    reader: Callable[[AnswerEvents], AnswerReader]
    if dialect == "anthropic":
        path, body = messages_request.PATH, messages_request.body_of(request, sending)
        reader = MessagesEvents
    else:
        path, body = chat.path_and_body(request, sending)
        reader = partial(chat.ChatEvents, wants_logprobs=wants_logprobs)
    return Exchange(
        path=path, body=body, reader_of=reader, content_type=EVENT_STREAM, frames=SseReader
    )


def _token_count(dialect: str, request: TokenCountRequest, sending: Sending) -> Exchange:
    counted = GenerationRequest(
        model=request.model, input=request.input, output_format=request.output_format
    )
    is_anthropics = dialect == "anthropic"
    prompt_of = messages_request.prompt_of if is_anthropics else chat.prompt_of
    return Exchange(
        path="/v1/messages/count_tokens" if is_anthropics else "/tokenize",
        is_unversioned=not is_anthropics,
        body=orjson.dumps(prompt_of(counted, sending)),
        reader_of=TokenCountReader,
    )


class Count(Answer):
    """Anthropic's field and vLLM's."""

    input_tokens: Any = None
    count: Any = None


_decode_count = msgspec.json.Decoder(Count).decode


class TokenCountReader:
    def __init__(self, answer: AnswerEvents) -> None:
        self._answer = answer

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        found = decoded(_decode_count, data, "something else than a number of tokens")
        name = "count" if found.input_tokens is None else "input_tokens"
        counted = tokens_of(msgspec.structs.asdict(found), name)
        if counted is None:  # llama-server's /tokenize, which reads no chat, answers so
            raise UpstreamFaultError("no number of tokens")
        self._answer.count(counted)
        return self._answer.take()
