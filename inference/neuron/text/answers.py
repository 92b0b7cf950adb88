"""A request's answer: all its choices, from the engine's outputs to events.

Scores are vectors of one number; an embedding model's are the cosines of its vectors. Owned by the
thread that applies engine outputs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from inference.neuron.errors import refused
from inference.neuron.text.choice_events import Choice, Echo, text_logprob
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompts import Prepared
from inference.neuron.text.request_details import RequestDetails
from inference.protocol.engine import SequencesEmbedded, SequenceStep, SequenceUsage, TokenLogprob
from inference.protocol.events import Embedded, Event, Finished, Usage
from inference.protocol.generation import ChatInput, GenerationRequest, TextInput
from inference.text.choice_text import ChoiceText
from inference.text.tokenizer import Detokenizer
from inference.text.tool_calls.call_parser import Decision


class TextAnswer:
    """``choices``: ``n`` in a row for each prompt. ``prompt_lengths``: in tokens."""

    def __init__(
        self,
        request_id: str,
        choices: Sequence[Choice],
        *,
        prompt_lengths: Sequence[int],
        n: int = 1,
    ) -> None:
        self._request_id = request_id
        self._choices = choices
        self._prompt_lengths = prompt_lengths
        self._n = n
        self._num_open = len(choices)

    @property
    def num_sequences(self) -> int:
        return len(self._choices)

    @property
    def has_begun(self) -> bool:
        return any(choice.has_begun for choice in self._choices)

    def feed(self, index: int, result: SequenceStep | SequencesEmbedded) -> list[Event]:
        assert isinstance(result, SequenceStep), "an embedding for a request for text"
        choice = self._choices[index]
        events = choice.feed(result)
        if choice.has_finished:
            self._num_open -= 1
            if self._num_open == 0:
                usage = self.usage() or Usage(prompt_tokens=0, completion_tokens=0)
                timing = choice.timing if self.num_sequences == 1 else None
                events.append(Finished(request_id=self._request_id, usage=usage, timing=timing))
        return events

    def cut(self, index: int, used: SequenceUsage) -> None:
        self._choices[index].cut(used)

    def has_finished(self, index: int) -> bool:
        return self._choices[index].has_finished

    def usage(self) -> Usage | None:
        """Counts each prompt once."""
        prompt_tokens = cached_tokens = 0
        for prompt_index, length in enumerate(self._prompt_lengths):
            first = prompt_index * self._n
            choices = self._choices[first : first + self._n]
            computed = [choice.num_computed_tokens(length) for choice in choices]
            prompt_tokens += max(computed)
            if max(computed) > 0:
                # Those of the first choice to compute it: the others share its blocks.
                by_whom = next(c for c, num in zip(choices, computed, strict=True) if num > 0)
                cached_tokens += by_whom.num_cached_tokens
        if prompt_tokens == 0:
            return None
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=sum(choice.num_output_tokens for choice in self._choices),
            cached_tokens=cached_tokens,
            reasoning_tokens=sum(choice.num_reasoning_tokens for choice in self._choices),
            accepted_drafts=sum(choice.num_accepted_drafts for choice in self._choices),
            rejected_drafts=sum(choice.num_rejected_drafts for choice in self._choices),
        )


def build_answer(
    request_id: str,
    request: GenerationRequest,
    prepared: Prepared,
    text: ModelText,
    details: Sequence[RequestDetails] = (),
) -> TextAnswer:
    """Raises ``RequestRefusedError`` for an empty stop string."""
    if not all(request.stop):
        raise refused("invalid_value", "a stop string is empty", param="stop")
    num_scored = request.sampling.prompt_logprobs
    choices = []
    for index in range(len(prepared.prompts) * request.n):
        prompt_index, number = divmod(index, request.n)
        # The first choice of each prompt reports its prompt's scores.
        scores = None if num_scored is None or number else (prompt_index, num_scored)
        choice = Choice(
            request_id=request_id,
            index=index,
            text=_choice_text(index, request, prepared, text, details),
            echo=echo_of(prompt_index, request, prepared, text) if request.echo else None,
            scores=scores,
            is_empty=request.sampling.max_tokens == 0,
            at_limit=prepared.limit.reason,
            returns_token_ids=request.returns_token_ids,
            details=details,
        )
        choices.append(choice)
    prompt_lengths = [len(prompt) for prompt in prepared.prompts]
    return TextAnswer(request_id, choices, prompt_lengths=prompt_lengths, n=request.n)


def echo_of(index: int, request: GenerationRequest, prepared: Prepared, text: ModelText) -> Echo:
    prompt = prepared.prompts[index]
    if isinstance(request.input, TextInput):
        echo = Echo(request.input.texts[index])
    else:
        detokenizer = Detokenizer(text.tokenizer)
        echo = Echo(detokenizer.feed(prompt) + detokenizer.flush())
    echo.num_top = request.sampling.top_logprobs
    if echo.num_top is not None:
        echo.logprobs.append(text_logprob(TokenLogprob(prompt[0], None), text.tokenizer))
    return echo


def _choice_text(
    index: int,
    request: GenerationRequest,
    prepared: Prepared,
    text: ModelText,
    details: Sequence[RequestDetails],
) -> ChoiceText:
    calls = parser = None
    if isinstance(request.input, ChatInput) and prepared.tools:
        calls = text.tool_format_of(request.input)

    def describe(decision: Decision) -> None:
        for one in details:
            one.decision(index, decision)

    if calls is not None:
        parser = calls.parser(prepared.tools)
        parser.streams_arguments = prepared.params.grammar is not None
        parser.on_decision = describe if details else None
    return ChoiceText(
        text.tokenizer,
        stop=request.stop,
        continues_text=prepared.continues_text,
        markers=prepared.thinking.markers,
        phrases=prepared.thinking.phrases,
        starts_thinking=prepared.thinking.is_open,
        tool_calls=parser,
        shown_token_ids=frozenset() if calls is None else calls.shown_token_ids(text.tokenizer),
    )


def cosines(vectors: Sequence[bytes], num_firsts: int) -> list[bytes]:
    """``vectors``: little-endian float32. The first ``num_firsts`` pair with the others in order; a
    single first one with all others."""
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
    num_sequences = 1

    def __init__(
        self, request_id: str, *, num_prompt_tokens: int, num_firsts: int | None = None
    ) -> None:
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
