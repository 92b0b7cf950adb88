"""Embeddings of an upstream of Ollama's dialect: the body, and its answer as our event. Pure.

Source: https://docs.ollama.com/api/embed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from inference.protocol.events import Event
from inference.protocol.generation import EmbeddingRequest, TextInput
from inference.wire.upstream.answer_events import AnswerEvents, tokens_of
from inference.wire.upstream.sending import Sending
from inference.wire.upstream.untranslated import refuse
from inference.wire.upstream.vectors import Given, answer_of, embedded, inputs_of

PATH = "/api/embed"


class Answer(msgspec.Struct):
    embeddings: list[Given] | None = None
    prompt_eval_count: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(Answer).decode


def body_of(request: EmbeddingRequest, sending: Sending) -> bytes:
    """Ollama cuts inputs that are too long unless it is asked not to. Raises
    ``UnsupportedParameterError``."""
    refuse(
        {
            "input": not isinstance(request.input, TextInput),
            "truncate_prompt_tokens": request.max_input_tokens is not None,
        }
    )
    body: dict[str, Any] = {
        "model": sending.model,
        "input": inputs_of(request),
        "truncate": request.cuts_inputs,
    }
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if sending.context_tokens is not None:
        body["options"] = {"num_ctx": sending.context_tokens}
    return orjson.dumps(body)


class EmbedReader:
    """An ``AnswerReader``."""

    def __init__(self, answer: AnswerEvents, request: EmbeddingRequest) -> None:
        self._answer = answer
        self._request = request

    def read(self, data: bytes) -> list[Event]:
        """Raises ``UpstreamFaultError``, ``UpstreamErrorObject``."""
        found = answer_of(_decode, data)
        counts = {"prompt_eval_count": found.prompt_eval_count}
        tokens = tokens_of(counts, "prompt_eval_count")
        return embedded(self._answer, self._request, found.embeddings or [], tokens)
