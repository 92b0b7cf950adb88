"""OpenAI's embeddings dialect: texts or token ids in, one vector for each of them out.

    parse(body) ─▶ EmbeddingsRequest(embedding, encoding_format)
    EmbeddingsBodyEncoder.parts(event) ─▶ the next pieces of one body

It has no streams. Source: https://platform.openai.com/docs/api-reference/embeddings. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from inference.protocol.events import Embedded, EmbeddedPart, Event
from inference.protocol.generation import EmbeddingRequest
from inference.wire import fields as f
from inference.wire.dialect import NO_CONTEXT, RequestContext, UnixClock
from inference.wire.errors import InvalidRequestError
from inference.wire.openai.fields import MODEL, USER, end_user_of, prompts

MAX_INPUTS = 2048
MAX_CUT = 2**31 - 1
MAX_DIMENSIONS = 2**20


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


FIELDS = f.table(
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
class EmbeddingsRequest:
    embedding: EmbeddingRequest
    encoding_format: str

    def body_encoder(self, *, request_id: str, clock: UnixClock) -> EmbeddingsBodyEncoder:
        return EmbeddingsBodyEncoder(self)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> EmbeddingsRequest:
    read = f.read_body(body, FIELDS)
    return EmbeddingsRequest(
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


class EmbeddingsBodyEncoder:
    def __init__(self, request: EmbeddingsRequest) -> None:
        self._model = request.embedding.model
        self._as_base64 = request.encoding_format == "base64"
        self._num_vectors = 0

    def encode(self, event: Event) -> bytes:
        return b"".join(self.parts(event))

    def parts(self, event: Event) -> Iterator[bytes]:
        """Pieces of one vector each: encoding all of them may take a third of a second, and the
        event loop runs between pieces."""
        if not isinstance(event, EmbeddedPart | Embedded):
            return
        for vector in event.vectors:
            head = b",{" if self._num_vectors else b'{"object":"list","data":[{'
            numbers = self._vector(vector)
            yield b'%b"object":"embedding","index":%d,"embedding":%b}' % (
                head,
                self._num_vectors,
                numbers,
            )
            self._num_vectors += 1
        if isinstance(event, Embedded):
            yield self._end(event)

    def _end(self, embedded: Embedded) -> bytes:
        num_tokens = embedded.usage.prompt_tokens
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return b'],"model":%b,"usage":%b}' % (orjson.dumps(self._model), orjson.dumps(usage))

    def _vector(self, vector: bytes) -> bytes:
        """Writes numbers with the fewest digits that give the same float32."""
        if self._as_base64:
            return b'"%b"' % base64.b64encode(vector)
        import numpy as np  # a gateway without embeddings does without its memory

        return orjson.dumps(np.frombuffer(vector, dtype="<f4"), option=orjson.OPT_SERIALIZE_NUMPY)
