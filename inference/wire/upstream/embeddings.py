"""Embeddings of an upstream of OpenAI's dialect: the body, and its answer as our event. Pure.

Vectors are asked for as base64 of float32, which is a quarter of the text. Source:
https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event
from inference.protocol.generation import EmbeddingRequest
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamFaultError,
    tokens_of,
)
from inference.wire.upstream.sending import Sending
from inference.wire.upstream.vectors import Given, answer_of, embedded, inputs_of

PATH = "/embeddings"


class Item(msgspec.Struct):
    embedding: Given
    index: int | None = None


class Answer(msgspec.Struct):
    data: list[Item] | None = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(Answer).decode


def body_of(request: EmbeddingRequest, sending: Sending) -> bytes:
    """An input that may be cut is sent whole, and the upstream cuts it or refuses it. One to be cut
    to a number of tokens has vLLM's name for that."""
    body: dict[str, Any] = {
        "model": sending.model,
        "input": inputs_of(request),
        "encoding_format": "base64",
    }
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if request.max_input_tokens is not None:
        body["truncate_prompt_tokens"] = request.max_input_tokens
    return orjson.dumps(body)


class EmbeddingsReader:
    """An ``AnswerReader``."""

    def __init__(self, answer: AnswerEvents, request: EmbeddingRequest) -> None:
        self._answer = answer
        self._request = request

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        found = answer_of(_decode, data)
        vectors = _in_order(found.data or [])
        tokens = tokens_of(found.usage, "prompt_tokens")
        return embedded(self._answer, self._request, vectors, tokens)


def _in_order(items: list[Item]) -> list[Given]:
    """Raises ``UpstreamFaultError``."""
    placed = {
        at if item.index is None else item.index: item.embedding for at, item in enumerate(items)
    }
    if set(placed) != set(range(len(items))):
        raise UpstreamFaultError("vectors of other inputs")
    return [placed[index] for index in range(len(items))]
