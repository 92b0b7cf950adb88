"""Ollama's embeddings, in both shapes: ``/api/embed``, and the older ``/api/embeddings``.

    parse(body) | parse_old(body) ─▶ EmbedRequest(embedding) ─▶ OllamaEmbedEncoder ─▶ one body

Source: https://docs.ollama.com/api/embed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.events import Embedded, EmbeddedPart, Event
from inference.protocol.generation import EmbeddingRequest, TextInput
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.ollama.answers import FineClock
from inference.wire.ollama.chat import OPTION_FIELDS
from inference.wire.ollama.models import KEEP_ALIVE, MODEL, catalogue_name
from inference.wire.openai.embeddings import MAX_DIMENSIONS, MAX_INPUTS

SHORTEST = 1e-12
"""A vector of zeros stays one."""

_text = f.text(min_chars=1)
_texts = f.array(_text, MAX_INPUTS, min_items=1)


def texts(value: Any, path: str) -> list[str]:
    if isinstance(value, str):
        return [_text(value, path)]
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of strings", value)
    return _texts(value, path)


_OPTIONS = f.neutral("options", OPTION_FIELDS.read, "They sample text; vectors are not sampled.")
FIELDS = f.table(
    MODEL,
    f.required("input", texts, "A string, or up to 2048; none may be empty."),
    f.honoured("dimensions", f.integer(1, MAX_DIMENSIONS), "Fewer, where the model allows it."),
    f.honoured("truncate", f.flag, "true: what a model cannot take is cut; else it is refused."),
    _OPTIONS,
    KEEP_ALIVE,
)
OLD_FIELDS = f.table(MODEL, f.required("prompt", _text, "The text."), _OPTIONS, KEEP_ALIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """``is_old``: one prompt, and one vector without a list around it."""

    embedding: EmbeddingRequest
    model: str
    is_old: bool = False

    def body_encoder(self, *, request_id: str, clock: FineClock) -> OllamaEmbedEncoder:
        return OllamaEmbedEncoder(self, clock)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> EmbedRequest:
    read = f.read_body(body, FIELDS)
    return EmbedRequest(
        embedding=EmbeddingRequest(
            model=catalogue_name(read["model"]),
            input=TextInput(texts=read["input"]),
            dimensions=read.get("dimensions"),
            cuts_inputs=read.get("truncate", False),
        ),
        model=read["model"],
    )


def parse_old(body: bytes, context: RequestContext = NO_CONTEXT) -> EmbedRequest:
    """Raises ``ApiError`` (400)."""
    read = f.read_body(body, OLD_FIELDS)
    return EmbedRequest(
        embedding=EmbeddingRequest(
            model=catalogue_name(read["model"]), input=TextInput(texts=[read["prompt"]])
        ),
        model=read["model"],
        is_old=True,
    )


class OllamaEmbedEncoder:
    def __init__(self, request: EmbedRequest, clock: FineClock) -> None:
        self._request = request
        self._clock = clock
        self._asked_s = clock()
        self._num_vectors = 0

    def asked_at(self, unix_s: float) -> None:
        self._asked_s = unix_s

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        if not isinstance(event, EmbeddedPart | Embedded):
            return
        if self._request.is_old:
            yield b'{"embedding":%b}' % _numbers(event.vectors[0])
            return
        for vector in event.vectors:
            yield (b"," if self._num_vectors else self._start()) + _numbers(vector, to_unit=True)
            self._num_vectors += 1
        if isinstance(event, Embedded):
            yield self._end(event)

    def _start(self) -> bytes:
        return b'{"model":%b,"embeddings":[' % orjson.dumps(self._request.model)

    def _end(self, embedded: Embedded) -> bytes:
        duration = max(0, round((self._clock() - self._asked_s) * 1e9))
        counts = duration, embedded.usage.prompt_tokens
        return b'],"total_duration":%d,"prompt_eval_count":%d}' % counts


def _numbers(vector: bytes, *, to_unit: bool = False) -> bytes:
    """``to_unit``: normalised to length 1, as in ``/api/embed``; the older endpoint has the model's
    own."""
    import numpy as np  # a gateway without embeddings does without its memory

    numbers = np.frombuffer(vector, dtype="<f4")
    if to_unit:
        length = np.linalg.norm(numbers.astype(np.float64))
        numbers = (numbers / max(length, SHORTEST)).astype(np.float32)
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
