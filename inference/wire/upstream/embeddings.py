"""Embeddings by an upstream: the body, and its answer as our event. Pure.

    numbers, or base64 of float32 ─▶ one for each input, of one length ─▶ embed

OpenAI's dialect requests vectors as base64, which is a quarter of the text. Sources:
https://platform.openai.com/docs/api-reference/embeddings, https://docs.ollama.com/api/embed.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event, Usage
from inference.protocol.generation import EmbeddingRequest, TextInput
from inference.wire.upstream.answer_events import (
    Answer,
    AnswerEvents,
    UpstreamFaultError,
    decoded,
    tokens_of,
)
from inference.wire.upstream.sending import Sending, refuse

MAX_DIMENSIONS = 2**20
FLOAT32_BYTES = 4
Given = str | list[float]


def openai_body(request: EmbeddingRequest, sending: Sending) -> bytes:
    """An input that may be cut is sent whole, and the upstream cuts it or refuses it. One to be cut
    to a number of tokens uses vLLM's field."""
    body = {"model": sending.model, "input": inputs_of(request), "encoding_format": "base64"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if request.max_input_tokens is not None:
        body["truncate_prompt_tokens"] = request.max_input_tokens
    return orjson.dumps(body)


def ollama_body(request: EmbeddingRequest, sending: Sending) -> bytes:
    """Ollama cuts inputs that are too long by default. Raises ``UnsupportedParameterError``."""
    refuse(
        {
            "input": not isinstance(request.input, TextInput),
            "truncate_prompt_tokens": request.max_input_tokens is not None,
        }
    )
    body: dict[str, Any] = {"model": sending.model, "input": inputs_of(request)}
    body["truncate"] = request.cuts_inputs
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if sending.context_tokens is not None:
        body["options"] = {"num_ctx": sending.context_tokens}
    return orjson.dumps(body)


def inputs_of(request: EmbeddingRequest) -> Any:
    given = request.input
    return given.texts if isinstance(given, TextInput) else given.prompts


class Item(msgspec.Struct):
    embedding: Given
    index: int | None = None


class Vectors(Answer):
    """OpenAI's fields, then Ollama's."""

    data: list[Item] | None = None
    usage: Any = None
    embeddings: list[Given] | None = None
    prompt_eval_count: Any = None


_decode = msgspec.json.Decoder(Vectors).decode


class VectorsReader:
    def __init__(self, answer: AnswerEvents, request: EmbeddingRequest) -> None:
        self._answer = answer
        self._request = request

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        found = decoded(_decode, data, "something else than vectors")
        given = _in_order(found.data or []) if found.embeddings is None else found.embeddings
        vectors = [_vector(one) for one in given]
        if len(vectors) != len(inputs_of(self._request)):
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


def _in_order(items: list[Item]) -> list[Given]:
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
