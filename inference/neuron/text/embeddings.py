"""Embedding and score requests: their inputs as token ids, and their answers.

An input over the model's limit is refused with both numbers, and cut only where the client wants
that. All inputs are one sequence to the engine. Scores are vectors of one number; those of an
embedding model are the cosines of its vectors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.neuron.errors import RequestRefusedError, context_length_exceeded
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompt_images import refused
from inference.protocol.engine import SequencesEmbedded, SequenceStep, SequenceUsage
from inference.protocol.events import Embedded, Event, Usage
from inference.protocol.generation import (
    EmbeddingRequest,
    PairsInput,
    ScoreRequest,
    TextInput,
    TokensInput,
)
from inference.protocol.load_report import LoadReport
from inference.text.errors import TooManyTokensError


def prepare_embedding(request: EmbeddingRequest, text: ModelText) -> list[list[int]]:
    """Token ids of each input. Text gets the special tokens that the model puts around it; token
    ids are taken as they are. Raises ``RequestRefusedError``."""
    _check_dimensions(request.dimensions, text.report)
    if request.cuts_inputs:
        inputs = _cut_inputs(request, request.max_input_tokens or text.report.context_tokens, text)
    else:
        inputs = _token_ids(request.input, text)
    for index, token_ids in enumerate(inputs):
        _check(token_ids, index, text.report)
    return inputs


def prepare_scoring(request: ScoreRequest, text: ModelText) -> list[list[int]]:
    """Token ids of each pair for a model that scores pairs, else of each text, the first ones
    first. Raises ``RequestRefusedError``."""
    given = request.input
    seconds = [_cut(one, given.max_second_tokens, text) for one in given.seconds]
    if text.report.kind == "embedding":
        inputs = [_encoded(one, index, text) for index, one in enumerate([*given.firsts, *seconds])]
    else:
        pairs = PairsInput(firsts=given.firsts, seconds=seconds).pairs
        inputs = [_encoded(pair, index, text) for index, pair in enumerate(pairs)]
    for index, token_ids in enumerate(inputs):
        _check(token_ids, index, text.report)
    return inputs


def _cut_inputs(request: EmbeddingRequest, max_tokens: int, text: ModelText) -> list[list[int]]:
    if isinstance(request.input, TokensInput):
        return [token_ids[:max_tokens] for token_ids in request.input.prompts]
    return [text.tokenizer.encode_start(one, max_tokens) for one in request.input.texts]


def _cut(one: str, max_tokens: int | None, text: ModelText) -> str:
    return one if max_tokens is None else text.tokenizer.cut(one, max_tokens)


def _token_ids(given: TextInput | TokensInput, text: ModelText) -> list[list[int]]:
    if isinstance(given, TokensInput):
        return given.prompts
    return [_encoded(one, index, text) for index, one in enumerate(given.texts)]


def _encoded(one: str | tuple[str, str], index: int, text: ModelText) -> list[int]:
    """The token ids of an input. One that is too long by its size alone is refused before
    tokenizing."""
    limit = text.report.context_tokens
    parts = [one] if isinstance(one, str) else one
    if (least_tokens := sum(map(text.tokenizer.least_tokens, parts))) > limit:
        raise _too_long(index, least_tokens, limit, f"at least {least_tokens}")
    try:
        if not isinstance(one, str):
            return text.tokenizer.encode_pair(one, max_tokens=limit)
        return text.tokenizer.encode(one, add_special_tokens=True, max_tokens=limit)
    except TooManyTokensError as error:
        raise _too_long(index, error.num_tokens, limit) from None


def _check(token_ids: list[int], index: int, report: LoadReport) -> None:
    limit, vocab_size = report.context_tokens, report.vocab_size
    if not token_ids:
        raise refused("empty_prompt", f"input {index} holds no tokens", param="input")
    if len(token_ids) > limit:
        raise _too_long(index, len(token_ids), limit)
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            message = (
                f"input {index} has the token id {token_id}, which is outside this model's "
                f"vocabulary of {vocab_size}"
            )
            raise refused("bad_token_id", message, param="input")


def _too_long(index: int, num_tokens: int, limit: int, words: str = "") -> RequestRefusedError:
    message = (
        f"this model's maximum input length is {limit} tokens and input {index} has "
        f"{words or num_tokens}"
    )
    failure = context_length_exceeded(
        message, "input", prompt_tokens=num_tokens, context_tokens=limit
    )
    return RequestRefusedError(failure)


def _check_dimensions(asked: int | None, report: LoadReport) -> None:
    """Leading dimensions are useful alone only in models that were trained for it. The vectors do
    not show that, so only models that declare it accept ``dimensions``."""
    own = report.embedding_dimensions
    if asked is None or asked == own:
        return
    if own is None or asked > own:
        message = f"this model's vectors have {own} dimensions and you asked for {asked}"
        raise refused("invalid_value", message, param="dimensions")
    if not report.is_matryoshka:
        message = (
            f"this model's vectors have {own} dimensions, and its config.json does not declare "
            "that fewer of them are of use (is_matryoshka, matryoshka_dimensions)"
        )
        raise refused("unsupported_parameter", message, param="dimensions")
    if report.matryoshka_dimensions and asked not in report.matryoshka_dimensions:
        known = ", ".join(map(str, report.matryoshka_dimensions))
        message = f"this model gives vectors of {known} or {own} dimensions, not of {asked}"
        raise refused("invalid_value", message, param="dimensions")


@dataclass(frozen=True, slots=True)
class Pairing:
    """Pairs of inputs: the first ``num_firsts`` with the others, in order, or the only first one
    with all others."""

    num_firsts: int

    def cosines(self, vectors: Sequence[bytes]) -> list[bytes]:
        import numpy as np  # takes 7 MB and a tenth of a second, which scores alone are worth

        numbers = [np.frombuffer(vector, dtype="<f4").astype(np.float64) for vector in vectors]
        firsts, seconds = numbers[: self.num_firsts], numbers[self.num_firsts :]
        if len(firsts) == 1:
            firsts = firsts * len(seconds)
        return [_cosine(*pair) for pair in zip(firsts, seconds, strict=True)]


def _cosine(first: Any, second: Any) -> bytes:
    length = math.sqrt(float(first @ first) * float(second @ second))
    cosine = float(first @ second) / length if length else 0.0
    return struct.pack("<f", max(-1.0, min(1.0, cosine)))


class EmbeddingAnswer:
    """One request's vectors, or with ``pairing`` their scores. ``num_prompt_tokens``: of all inputs
    together."""

    num_sequences = 1

    def __init__(
        self, request_id: str, *, num_prompt_tokens: int, pairing: Pairing | None = None
    ) -> None:
        self._pairing = pairing
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens
        self._num_computed_tokens = 0
        self._has_finished = False

    def has_finished(self, index: int) -> bool:
        return self._has_finished

    @property
    def has_begun(self) -> bool:
        return self._num_computed_tokens > 0

    def feed(self, index: int, result: SequenceStep | SequencesEmbedded) -> list[Event]:
        assert isinstance(result, SequencesEmbedded), "text for a request for vectors"
        self._has_finished = True
        self._num_computed_tokens = self._num_prompt_tokens
        usage = Usage(prompt_tokens=self._num_prompt_tokens, completion_tokens=0)
        vectors = result.vectors
        if self._pairing is not None:
            vectors = self._pairing.cosines(vectors)
        return [Embedded(request_id=self._request_id, vectors=vectors, usage=usage)]

    def cut(self, index: int, used: SequenceUsage) -> None:
        self._has_finished = True
        self._num_computed_tokens = used.num_prompt_tokens

    def usage(self) -> Usage | None:
        if self._num_computed_tokens == 0:
            return None
        return Usage(prompt_tokens=self._num_computed_tokens, completion_tokens=0)
