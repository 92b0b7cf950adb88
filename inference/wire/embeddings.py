"""Embeddings: https://platform.openai.com/docs/api-reference/embeddings and
https://docs.ollama.com/api/embed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.events import Embedded, EmbeddedPart, Event
from inference.protocol.generation import EmbeddingRequest, TextInput
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError
from inference.wire.ollama.answers import FineClock
from inference.wire.ollama.chat import OPTION_FIELDS
from inference.wire.ollama.models import KEEP_ALIVE, catalogue_name
from inference.wire.ollama.models import MODEL as OLLAMA_MODEL
from inference.wire.openai.fields import MODEL, USER, end_user_of, prompts

MAX_INPUTS = 2048
MAX_CUT = 2**31 - 1
MAX_DIMENSIONS = 2**20
SHORTEST = 1e-12
"""Keeps a vector of zeros."""


class VectorsEncoder:
    """Encoding all vectors may take 0.3 s; the event loop runs between the parts."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._num_vectors = 0

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        if not isinstance(event, EmbeddedPart | Embedded):
            return
        for vector in event.vectors:
            yield self._vector(vector)
            self._num_vectors += 1
        if isinstance(event, Embedded):
            yield self._end(event)

    def _vector(self, vector: bytes) -> bytes:
        raise NotImplementedError

    def _end(self, embedded: Embedded) -> bytes:
        raise NotImplementedError


def _numbers(vector: bytes, *, to_unit: bool = False) -> bytes:
    """float32 with the fewest digits that read back the same. ``to_unit``: length 1."""
    import numpy as np  # a gateway without embeddings does without its memory

    numbers = np.frombuffer(vector, dtype="<f4")
    if to_unit:
        length = np.linalg.norm(numbers.astype(np.float64))
        numbers = (numbers / max(length, SHORTEST)).astype(np.float32)
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)


def encoding_format(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise f.wrong_type(path, "a string", value)
    if value not in ("float", "base64"):
        raise InvalidRequestError(f"'{path}' must be float or base64.", param=path)
    return value


def cut_to(value: Any, path: str) -> int:
    """-1: as many as the model accepts."""
    checked: int = f.integer(-1, MAX_CUT)(value, path)
    if checked == 0:
        raise InvalidRequestError(f"'{path}' must not be 0.", param=path)
    return checked


OPENAI_FIELDS = f.table(
    MODEL,
    f.required(
        "input",
        prompts(MAX_INPUTS),
        "A string, token ids, or up to 2048 of either; none may be empty. Text gets the special "
        "tokens of the model, token ids are taken as they are. An input over the model's limit is "
        "refused unless truncate_prompt_tokens cuts it.",
    ),
    f.honoured("encoding_format", encoding_format, "float (the default), or base64 of float32."),
    f.honoured(
        "dimensions",
        f.integer(1, MAX_DIMENSIONS),
        "The model's own number, or fewer of models whose config.json declares that (is_matryoshka "
        "or matryoshka_dimensions): the leading ones, brought to length 1.",
    ),
    f.honoured(
        "truncate_prompt_tokens",
        cut_to,
        "Extension; an input's tokens beyond so many are left out; -1: those that the model does "
        "not take.",
    ),
    f.fixed("normalize", True, "vectors are as the model makes them"),
    f.fixed("add_special_tokens", True, "the model wants them"),
    f.fixed("priority", 0, "callers take turns by account"),
    f.neutral("request_id", f.text(512), "A label; kept nowhere."),
    USER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIEmbeddings:
    embedding: EmbeddingRequest
    encoding_format: str

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> OpenAIVectors:
        return OpenAIVectors(self)


def parse_openai(body: bytes, context: RequestContext = NO_CONTEXT) -> OpenAIEmbeddings:
    read = f.read_body(body, OPENAI_FIELDS)
    return OpenAIEmbeddings(
        embedding=EmbeddingRequest(
            model=read["model"],
            input=read["input"],
            dimensions=read.get("dimensions"),
            cuts_inputs="truncate_prompt_tokens" in read,
            max_input_tokens=cut if (cut := read.get("truncate_prompt_tokens", -1)) > 0 else None,
            end_user=end_user_of(read),
        ),
        encoding_format=read.get("encoding_format", "float"),
    )


class OpenAIVectors(VectorsEncoder):
    def __init__(self, request: OpenAIEmbeddings) -> None:
        super().__init__(request.embedding.model)
        self._as_base64 = request.encoding_format == "base64"

    def _vector(self, vector: bytes) -> bytes:
        head = b",{" if self._num_vectors else b'{"object":"list","data":[{'
        numbers = b'"%b"' % base64.b64encode(vector) if self._as_base64 else _numbers(vector)
        place = self._num_vectors
        return b'%b"object":"embedding","index":%d,"embedding":%b}' % (head, place, numbers)

    def _end(self, embedded: Embedded) -> bytes:
        num_tokens = embedded.usage.prompt_tokens
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return b'],"model":%b,"usage":%b}' % (orjson.dumps(self._model), orjson.dumps(usage))


_text = f.text(min_chars=1)
_texts = f.array(_text, MAX_INPUTS, min_items=1)


def texts(value: Any, path: str) -> list[str]:
    if isinstance(value, str):
        return [_text(value, path)]
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of strings", value)
    return _texts(value, path)


_OPTIONS = f.neutral("options", OPTION_FIELDS.read, "They sample text; vectors are not sampled.")
OLLAMA_FIELDS = f.table(
    OLLAMA_MODEL,
    f.required("input", texts, "A string, or up to 2048; none may be empty."),
    f.honoured("dimensions", f.integer(1, MAX_DIMENSIONS), "Fewer, where the model allows it."),
    f.honoured("truncate", f.flag, "true: what a model cannot take is cut; else it is refused."),
    _OPTIONS,
    KEEP_ALIVE,
)
OLD_OLLAMA_FIELDS = f.table(
    OLLAMA_MODEL, f.required("prompt", _text, "The text."), _OPTIONS, KEEP_ALIVE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaEmbeddings:
    embedding: EmbeddingRequest
    model: str
    is_old: bool = False

    def body_encoder(self, *, request_id: str, clock: FineClock) -> OllamaVectors:
        shape = OldOllamaVectors if self.is_old else OllamaVectors
        return shape(self.model, clock)


def parse_ollama(body: bytes, context: RequestContext = NO_CONTEXT) -> OllamaEmbeddings:
    read = f.read_body(body, OLLAMA_FIELDS)
    return OllamaEmbeddings(
        embedding=EmbeddingRequest(
            model=catalogue_name(read["model"]),
            input=TextInput(texts=read["input"]),
            dimensions=read.get("dimensions"),
            cuts_inputs=read.get("truncate", False),
        ),
        model=read["model"],
    )


def parse_old_ollama(body: bytes, context: RequestContext = NO_CONTEXT) -> OllamaEmbeddings:
    read = f.read_body(body, OLD_OLLAMA_FIELDS)
    return OllamaEmbeddings(
        embedding=EmbeddingRequest(
            model=catalogue_name(read["model"]), input=TextInput(texts=[read["prompt"]])
        ),
        model=read["model"],
        is_old=True,
    )


class OllamaVectors(VectorsEncoder):
    def __init__(self, model: str, clock: FineClock) -> None:
        super().__init__(model)
        self._clock = clock
        self._asked_s = clock()

    def asked_at(self, unix_s: float) -> None:
        self._asked_s = unix_s

    def _vector(self, vector: bytes) -> bytes:
        begin = b'{"model":%b,"embeddings":[' % orjson.dumps(self._model)
        return (b"," if self._num_vectors else begin) + _numbers(vector, to_unit=True)

    def _end(self, embedded: Embedded) -> bytes:
        duration = max(0, round((self._clock() - self._asked_s) * 1e9))
        counts = duration, embedded.usage.prompt_tokens
        return b'],"total_duration":%d,"prompt_eval_count":%d}' % counts


class OldOllamaVectors(OllamaVectors):
    """/api/embeddings returns the vector without normalising it."""

    def _vector(self, vector: bytes) -> bytes:
        return b'{"embedding":%b}' % _numbers(vector)

    def _end(self, embedded: Embedded) -> bytes:
        return b""
