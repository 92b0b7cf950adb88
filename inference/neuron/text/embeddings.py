"""Embedding and score requests: their inputs as token ids, and their answers.

An input over the model's limit is refused with both numbers, and cut only where the client wants
that. All inputs are one sequence to the engine. Scores are vectors of one number; those of an
embedding model are the cosines of its vectors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
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
    TokensInput,
)
from inference.protocol.load_report import LoadReport
from inference.text.errors import TooManyTokensError


def prepare_embedding(request: EmbeddingRequest, text: ModelText) -> list[list[int]]:
    """Token ids of each input. Text gets the special tokens that the model puts around it; token
    ids are taken as they are. Raises ``RequestRefusedError``."""
    _check_dimensions(request.dimensions, text.report)
    given, max_tokens = request.input, None
    if request.cuts_inputs:
        max_tokens = request.max_input_tokens or text.report.context_tokens
    if isinstance(given, TokensInput):
        return _checked([token_ids[:max_tokens] for token_ids in given.prompts], text.report)
    if max_tokens is None:
        return _all_encoded(given.texts, text)
    inputs = [text.tokenizer.encode_start(one, max_tokens) for one in given.texts]
    return _checked(inputs, text.report)


def prepare_scoring(request: ScoreRequest, text: ModelText) -> list[list[int]]:
    """Token ids of each pair for a model that scores pairs, else of each text, the first ones
    first. Raises ``RequestRefusedError``."""
    firsts, seconds = request.input.firsts, request.input.seconds
    if (most := request.input.max_second_tokens) is not None:
        seconds = [text.tokenizer.cut(one, most) for one in seconds]
    if text.report.kind == "embedding":
        return _all_encoded([*firsts, *seconds], text)
    return _all_encoded(PairsInput(firsts=firsts, seconds=seconds).pairs, text)


def _all_encoded(given: Sequence[str | tuple[str, str]], text: ModelText) -> list[list[int]]:
    inputs = [_encoded(one, index, text) for index, one in enumerate(given)]
    return _checked(inputs, text.report)


def _encoded(one: str | tuple[str, str], index: int, text: ModelText) -> list[int]:
    limit = text.report.context_tokens
    try:
        if not isinstance(one, str):
            return text.tokenizer.encode_pair(one, max_tokens=limit)
        return text.tokenizer.encode(one, add_special_tokens=True, max_tokens=limit)
    except TooManyTokensError as error:
        raise _too_long(index, error.num_tokens, limit, error.words) from None


def _checked(inputs: list[list[int]], report: LoadReport) -> list[list[int]]:
    limit, vocab_size = report.context_tokens, report.vocab_size
    for index, token_ids in enumerate(inputs):
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
    return inputs


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


def cosines(vectors: Sequence[bytes], num_firsts: int) -> list[bytes]:
    """The cosines of the first ``num_firsts`` vectors with the others, in order, or of the only
    first one with all others."""
    import numpy as np  # takes 7 MB and a tenth of a second, which scores alone are worth

    numbers = [np.frombuffer(vector, dtype="<f4").astype(np.float64) for vector in vectors]
    firsts, seconds = numbers[:num_firsts], numbers[num_firsts:]
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    return [_cosine(*pair) for pair in zip(firsts, seconds, strict=True)]


def _cosine(first: Any, second: Any) -> bytes:
    length = math.sqrt(float(first @ first) * float(second @ second))
    cosine = float(first @ second) / length if length else 0.0
    return struct.pack("<f", max(-1.0, min(1.0, cosine)))


class EmbeddingAnswer:
    """One request's vectors. With ``num_firsts``, their scores (``cosines``)."""

    num_sequences = 1

    def __init__(
        self, request_id: str, *, num_prompt_tokens: int, num_firsts: int | None = None
    ) -> None:
        """``num_prompt_tokens``: of all inputs together."""
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens
        self._num_firsts = num_firsts
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
        vectors = result.vectors
        if self._num_firsts is not None:
            vectors = cosines(vectors, self._num_firsts)
        usage = Usage(prompt_tokens=self._num_prompt_tokens, completion_tokens=0)
        return [Embedded(request_id=self._request_id, vectors=vectors, usage=usage)]

    def cut(self, index: int, used: SequenceUsage) -> None:
        self._has_finished = True
        self._num_computed_tokens = used.num_prompt_tokens

    def usage(self) -> Usage | None:
        if self._num_computed_tokens == 0:
            return None
        return Usage(prompt_tokens=self._num_computed_tokens, completion_tokens=0)
