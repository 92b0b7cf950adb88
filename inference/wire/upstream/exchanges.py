"""Exchanges with upstreams by dialect: a request's body, and the reader of its answer.

Vectors are requested as base64, a quarter of the text. Sources:
https://platform.openai.com/docs/api-reference/embeddings, https://docs.ollama.com/api/embed,
https://docs.anthropic.com/en/api/messages-count-tokens and
https://docs.vllm.ai/en/latest/serving/online_serving (Tokenizer API).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, Usage
from inference.protocol.generation import (
    EmbeddingRequest,
    GenerationRequest,
    TextInput,
    TokenCountRequest,
)
from inference.wire.upstream import Sending, chat, messages_request, ollama, refuse
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

EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"
JSON = "application/json"
Forwarded = GenerationRequest | EmbeddingRequest | TokenCountRequest
EMBEDDING_DIALECTS = ("openai", "ollama")
TOKEN_COUNT_DIALECTS = ("openai", "anthropic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    path: str
    """Relative to the upstream's URL; with ``is_unversioned`` without its ``/v1``."""
    is_unversioned: bool = False
    body: bytes
    reader_of: Callable[[AnswerEvents], AnswerReader]
    content_type: str = JSON
    """An answer of another type is read whole, like JSON."""
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
    reader: type[AnswerReader]
    match request:
        case EmbeddingRequest():
            is_ollamas = dialect == "ollama"
            body_of = ollama_vectors_body if is_ollamas else openai_vectors_body
            return Exchange(
                path="/api/embed" if is_ollamas else "/embeddings",
                body=body_of(request, sending),
                reader_of=partial(VectorsReader, request=request),
            )
        case TokenCountRequest():
            return _token_count(dialect, request, sending)
    how: dict[str, Any] = {"content_type": EVENT_STREAM, "frames": SseReader}
    match dialect:
        case "ollama":
            reader, how = ollama.OllamaEvents, {"content_type": JSON_LINES}
            path, body = ollama.path_and_body(request, sending)
        case "anthropic":
            reader = MessagesEvents
            path, body = messages_request.PATH, messages_request.body_of(request, sending)
        case _:
            reader = chat.ChatEvents
            path, body = chat.path_and_body(request, sending)
    wants_logprobs = request.sampling.top_logprobs is not None
    reader_of = partial(reader, wants_logprobs=wants_logprobs)
    return Exchange(path=path, body=body, reader_of=reader_of, **how)


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


MAX_DIMENSIONS = 2**20
FLOAT32_BYTES = 4
Given = str | list[float]


def openai_vectors_body(request: EmbeddingRequest, sending: Sending) -> bytes:
    """The upstream cuts or refuses long inputs. ``truncate_prompt_tokens`` is vLLM's field."""
    body = {"model": sending.model, "input": _inputs(request), "encoding_format": "base64"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if request.max_input_tokens is not None:
        body["truncate_prompt_tokens"] = request.max_input_tokens
    return orjson.dumps(body)


def ollama_vectors_body(request: EmbeddingRequest, sending: Sending) -> bytes:
    """Ollama cuts long inputs by default."""
    refuse(
        {
            "input": not isinstance(request.input, TextInput),
            "truncate_prompt_tokens": request.max_input_tokens is not None,
        }
    )
    body: dict[str, Any] = {"model": sending.model, "input": _inputs(request)}
    body["truncate"] = request.cuts_inputs
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if sending.context_tokens is not None:
        body["options"] = {"num_ctx": sending.context_tokens}
    return orjson.dumps(body)


def _inputs(request: EmbeddingRequest) -> Any:
    given = request.input
    return given.texts if isinstance(given, TextInput) else given.prompts


class VectorItem(msgspec.Struct):
    embedding: Given
    index: int | None = None


class Vectors(Answer):
    """OpenAI's fields, then Ollama's."""

    data: list[VectorItem] | None = None
    usage: Any = None
    embeddings: list[Given] | None = None
    prompt_eval_count: Any = None


_decode_vectors = msgspec.json.Decoder(Vectors).decode


class VectorsReader(AnswerReader):
    def __init__(self, answer: AnswerEvents, request: EmbeddingRequest) -> None:
        super().__init__(answer)
        self._request = request

    def read(self, data: bytes) -> list[Event]:
        found = decoded(_decode_vectors, data, "something else than vectors")
        given = _in_order(found.data or []) if found.embeddings is None else found.embeddings
        vectors = [_vector(one) for one in given]
        if len(vectors) != len(_inputs(self._request)):
            raise UpstreamFaultError("another number of vectors than of inputs")
        if len({len(vector) for vector in vectors}) > 1:
            raise UpstreamFaultError("vectors of several lengths")
        if self._request.dimensions not in (None, len(vectors[0]) // FLOAT32_BYTES):
            raise UpstreamFaultError("vectors of other dimensions than were asked for")
        tokens = tokens_of(found.usage, "prompt_tokens")
        if tokens is None:
            tokens = tokens_of(msgspec.structs.asdict(found), "prompt_eval_count")
        if tokens is not None:
            self._answer.reported_usage = Usage(prompt_tokens=tokens, completion_tokens=0)
        self._answer.accept()
        self._answer.embed(vectors)
        return self._answer.take()


def _in_order(items: list[VectorItem]) -> list[Given]:
    placed = {
        at if item.index is None else item.index: item.embedding for at, item in enumerate(items)
    }
    if set(placed) != set(range(len(items))):
        raise UpstreamFaultError("vectors of other inputs")
    return [placed[index] for index in range(len(items))]


def _vector(given: Given) -> bytes:
    import numpy as np  # a gateway without embeddings does without its memory

    if isinstance(given, str):
        try:
            numbers = np.frombuffer(b64decode(given, validate=True), dtype="<f4")
        except (binascii.Error, ValueError) as error:
            raise UpstreamFaultError("a vector of another form") from error
    else:
        with np.errstate(over="ignore"):
            numbers = np.array(given, dtype="<f4")
    if not 0 < len(numbers) <= MAX_DIMENSIONS or not np.isfinite(numbers).all():
        raise UpstreamFaultError("a vector of no numbers")
    return numbers.tobytes()


class Count(Answer):
    """Anthropic's field and vLLM's."""

    input_tokens: Any = None
    count: Any = None


_decode_count = msgspec.json.Decoder(Count).decode


class TokenCountReader(AnswerReader):
    def read(self, data: bytes) -> list[Event]:
        found = decoded(_decode_count, data, "something else than a number of tokens")
        name = "count" if found.input_tokens is None else "input_tokens"
        counted = tokens_of(msgspec.structs.asdict(found), name)
        if counted is None:  # llama-server's /tokenize, which reads no chat, answers so
            raise UpstreamFaultError("no number of tokens")
        self._answer.count(counted)
        return self._answer.take()
