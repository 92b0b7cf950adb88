"""OpenAI's embeddings dialect: texts or token ids in, one vector for each of them out.

    parse(body) ─▶ EmbeddingsRequest(embedding, encoding_format)
    EmbeddingsBodyEncoder.encode(event) ─▶ b"" … one body

There are no streams of it. Source: https://platform.openai.com/docs/api-reference/embeddings. Pure.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson

from inference.protocol.events import Embedded, Event
from inference.protocol.generation import EmbeddingRequest, TextInput, TokensInput
from inference.wire import openai_sampling
from inference.wire.dialect import NO_CONTEXT, RequestContext
from inference.wire.errors import InvalidRequestError
from inference.wire.fields import (
    array,
    honoured,
    integer,
    neutral,
    read_fields,
    read_json_object,
    table,
    text,
    wrong_type,
)

MAX_INPUTS = 2048
MAX_DIMENSIONS = 2**20
MAX_MODEL_NAME_CHARS = 256
EncodingFormat = Literal["float", "base64"]

_text = text(min_chars=1)
_texts = array(_text, MAX_INPUTS, min_items=1)
_token_ids = array(openai_sampling.token_id, min_items=1)
_lists_of_token_ids = array(_token_ids, MAX_INPUTS, min_items=1)


def embedding_input(value: Any, path: str) -> TextInput | TokensInput:
    """A list's first item says which of the three kinds of list it is."""
    if isinstance(value, str):
        return TextInput(texts=[_text(value, path)])
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array", value)
    match value[:1]:
        case [list()]:
            return TokensInput(prompts=_lists_of_token_ids(value, path))
        case [int()]:
            return TokensInput(prompts=[_token_ids(value, path)])
    return TextInput(texts=_texts(value, path))


def encoding_format(value: Any, path: str) -> EncodingFormat:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    match value:
        case "float" | "base64":
            return value
    raise InvalidRequestError(f"'{path}' must be float or base64.", param=path)


FIELDS = table(
    honoured(
        "model",
        text(MAX_MODEL_NAME_CHARS, min_chars=1),
        "A catalogue model's name or an alias; echoed as given.",
    ),
    honoured(
        "input",
        embedding_input,
        "A string, token ids, or up to 2048 of either; none may be empty. Text gets the special "
        "tokens of the model, token ids are taken as they are. An input over the model's limit is "
        "refused, never cut.",
    ),
    honoured("encoding_format", encoding_format, "float (the default), or base64 of float32."),
    honoured(
        "dimensions",
        integer(1, MAX_DIMENSIONS),
        "The model's own number, or fewer of models whose config.json declares that (is_matryoshka "
        "or matryoshka_dimensions): the leading ones, brought to length 1.",
    ),
    neutral("user", text(512), "A label; kept nowhere."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest:
    embedding: EmbeddingRequest
    encoding_format: EncodingFormat

    def body_encoder(self, *, request_id: str, created_unix_s: int) -> EmbeddingsBodyEncoder:
        """The dialect shows neither: its answers have no id and no time."""
        return EmbeddingsBodyEncoder(self)


def parse(body: bytes, context: RequestContext = NO_CONTEXT) -> EmbeddingsRequest:
    """Raises ``ApiError`` (400) for everything that is not a request this server honours whole."""
    read = read_fields(read_json_object(body), FIELDS, required=("model", "input"))
    return EmbeddingsRequest(
        embedding=EmbeddingRequest(
            model=read["model"], input=read["input"], dimensions=read.get("dimensions")
        ),
        encoding_format=read.get("encoding_format", "float"),
    )


class EmbeddingsBodyEncoder:
    def __init__(self, request: EmbeddingsRequest) -> None:
        self._model = request.embedding.model
        self._as_base64 = request.encoding_format == "base64"

    def encode(self, event: Event) -> bytes:
        return self._body(event) if isinstance(event, Embedded) else b""

    def _body(self, embedded: Embedded) -> bytes:
        num_tokens = embedded.usage.prompt_tokens
        body = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._vector(vector)}
                for index, vector in enumerate(embedded.vectors)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

    def _vector(self, vector: bytes) -> str | np.ndarray[Any, np.dtype[np.float32]]:
        """As numbers they are written with the fewest digits that make the same float32."""
        if self._as_base64:
            return base64.b64encode(vector).decode()
        return np.frombuffer(vector, dtype="<f4")
