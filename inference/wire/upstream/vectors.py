"""Vectors in an upstream's answer as our event. Pure.

numbers, or base64 of float32 ─▶ one for each input, of one length ─▶ embed
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from inference.protocol.events import Event, Usage
from inference.protocol.generation import EmbeddingRequest, TextInput, TokensInput
from inference.wire.upstream.answer_events import (
    AnswerEvents,
    UpstreamErrorObject,
    UpstreamFaultError,
)

MAX_DIMENSIONS = 2**20
FLOAT32_BYTES = 4
Given = str | list[float]
"""Base64 of float32, little-endian, or numbers."""


class MayFail(Protocol):
    error: Any


AnyAnswer = TypeVar("AnyAnswer", bound=MayFail)


def answer_of(decode: Callable[[bytes], AnyAnswer], data: bytes) -> AnyAnswer:
    """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
    try:
        found = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamFaultError("something else than vectors") from error
    if found.error is not None:
        raise UpstreamErrorObject(found.error)
    return found


def embedded(
    answer: AnswerEvents, request: EmbeddingRequest, given: list[Given], tokens: int | None
) -> list[Event]:
    """``given``: in the inputs' order. ``tokens``: as the upstream counts them; ``None``: it does
    not. Raises ``UpstreamFaultError``."""
    vectors = [_vector(one) for one in given]
    if len(vectors) != num_inputs(request):
        raise UpstreamFaultError("another number of vectors than of inputs")
    if len({len(vector) for vector in vectors}) > 1:
        raise UpstreamFaultError("vectors of several lengths")
    if request.dimensions not in (None, len(vectors[0]) // FLOAT32_BYTES):
        raise UpstreamFaultError("vectors of other dimensions than were asked for")
    if tokens is not None:
        answer.reported_usage = Usage(prompt_tokens=tokens, completion_tokens=0)
    answer.accept()
    answer.embed(vectors)
    return answer.take()


def inputs_of(request: EmbeddingRequest) -> list[str] | list[list[int]]:
    match request.input:
        case TextInput(texts=texts):
            return texts
        case TokensInput(prompts=prompts):
            return prompts


def num_inputs(request: EmbeddingRequest) -> int:
    return len(inputs_of(request))


def _vector(given: Given) -> bytes:
    """float32, little-endian. Raises ``UpstreamFaultError``."""
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
