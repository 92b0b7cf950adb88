"""The dialects in which requests are sent to upstreams, by name. Pure.

A new one is a file for its requests, one for its answers, a function and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inference.protocol.generation import EmbeddingRequest, GenerationRequest, TokenCountRequest
from inference.wire.upstream import (
    chat_request,
    embeddings,
    messages_request,
    ollama_embed,
    ollama_request,
    token_counts,
)
from inference.wire.upstream.answer_events import AnswerEvents, AnswerReader
from inference.wire.upstream.chat_events import ChatEvents
from inference.wire.upstream.embeddings import EmbeddingsReader
from inference.wire.upstream.frames import FrameReader, LinesReader, SseReader
from inference.wire.upstream.messages_events import MessagesEvents
from inference.wire.upstream.ollama_embed import EmbedReader
from inference.wire.upstream.ollama_events import OllamaEvents
from inference.wire.upstream.sending import Sending
from inference.wire.upstream.token_counts import TokenCountReader

EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"
JSON = "application/json"
Forwarded = GenerationRequest | EmbeddingRequest | TokenCountRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request as it is sent, and how its answer is read."""

    path: str
    """Below the upstream's URL; with ``is_unversioned`` below that without its ``/v1``."""
    is_unversioned: bool = False
    body: bytes
    reader_of: Callable[[AnswerEvents], AnswerReader]
    content_type: str
    """The content type of an answer as it is asked for. An answer of another type is read whole, as
    JSON is."""
    frames: Callable[[], FrameReader]


def _chat(request: GenerationRequest, sending: Sending) -> Exchange:
    wants_logprobs = request.sampling.top_logprobs is not None
    return Exchange(
        path=chat_request.path_of(request),
        body=chat_request.body_of(request, sending),
        reader_of=lambda answer: ChatEvents(answer, wants_logprobs=wants_logprobs),
        content_type=EVENT_STREAM,
        frames=SseReader,
    )


def _messages(request: GenerationRequest, sending: Sending) -> Exchange:
    return Exchange(
        path=messages_request.PATH,
        body=messages_request.body_of(request, sending),
        reader_of=MessagesEvents,
        content_type=EVENT_STREAM,
        frames=SseReader,
    )


def _ollama(request: GenerationRequest, sending: Sending) -> Exchange:
    wants_logprobs = request.sampling.top_logprobs is not None
    return Exchange(
        path=ollama_request.path_of(request),
        body=ollama_request.body_of(request, sending),
        reader_of=lambda answer: OllamaEvents(answer, wants_logprobs=wants_logprobs),
        content_type=JSON_LINES,
        frames=LinesReader,
    )


def _embeddings(request: EmbeddingRequest, sending: Sending) -> Exchange:
    return Exchange(
        path=embeddings.PATH,
        body=embeddings.body_of(request, sending),
        reader_of=lambda answer: EmbeddingsReader(answer, request),
        content_type=JSON,
        frames=LinesReader,
    )


def _ollama_embed(request: EmbeddingRequest, sending: Sending) -> Exchange:
    return Exchange(
        path=ollama_embed.PATH,
        body=ollama_embed.body_of(request, sending),
        reader_of=lambda answer: EmbedReader(answer, request),
        content_type=JSON,
        frames=LinesReader,
    )


def _messages_count(request: TokenCountRequest, sending: Sending) -> Exchange:
    return Exchange(
        path=token_counts.MESSAGES_PATH,
        body=token_counts.messages_body(request, sending),
        reader_of=lambda answer: TokenCountReader(answer, token_counts.MESSAGES_COUNT),
        content_type=JSON,
        frames=LinesReader,
    )


def _tokenize_count(request: TokenCountRequest, sending: Sending) -> Exchange:
    return Exchange(
        path=token_counts.TOKENIZE_PATH,
        is_unversioned=True,
        body=token_counts.tokenize_body(request, sending),
        reader_of=lambda answer: TokenCountReader(answer, token_counts.TOKENIZE_COUNT),
        content_type=JSON,
        frames=LinesReader,
    )


GENERATION: Mapping[str, Callable[[GenerationRequest, Sending], Exchange]] = {
    "openai": _chat,
    "anthropic": _messages,
    "ollama": _ollama,
}
EMBEDDING: Mapping[str, Callable[[EmbeddingRequest, Sending], Exchange]] = {
    "openai": _embeddings,
    "ollama": _ollama_embed,
}


TOKEN_COUNT: Mapping[str, Callable[[TokenCountRequest, Sending], Exchange]] = {
    "openai": _tokenize_count,
    "anthropic": _messages_count,
}


def is_forwarded(dialect: str, request: Forwarded) -> bool:
    """Whether such requests are sent to upstreams of that dialect."""
    match request:
        case EmbeddingRequest():
            return dialect in EMBEDDING
        case TokenCountRequest():
            return dialect in TOKEN_COUNT
    return True


def exchange_of(dialect: str, request: Forwarded, sending: Sending) -> Exchange:
    """Raises ``ApiError`` for fields that are not translated."""
    match request:
        case EmbeddingRequest():
            return EMBEDDING[dialect](request, sending)
        case TokenCountRequest():
            return TOKEN_COUNT[dialect](request, sending)
    return GENERATION[dialect](request, sending)
