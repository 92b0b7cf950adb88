"""Checks that a neuron's message is a possible answer to its request. Pure.

    generation   Accepted ─▶ events of open choices ─▶ ChoiceFinished for each ─▶ Finished
    embedding    Accepted ─▶ EmbeddedPart … Embedded, one vector for each prompt
    score        the same, one number for each pair
    count        TokensCounted         tokenize   Tokenized
                 at any time: Failed | Cancelled

A neuron may be broken or hostile: each number's bound and each kind's place are checked once, here.
Gaps are detected by the batches' numbers.
"""

from __future__ import annotations

import math
import re
from itertools import chain

from inference.gateway.request.tokens import num_prompts
from inference.protocol import events
from inference.protocol.generation import (
    EmbeddingRequest,
    GenerationRequest,
    Request,
    ScoreRequest,
    TokenCountRequest,
    TokenizeRequest,
)

CODE = re.compile(r"[a-z0-9_]{1,64}")
MAX_MESSAGE_CHARACTERS = 16_384
MAX_PLACES_CHARACTERS = 2**20
MAX_RETRY_AFTER_S = 86_400.0
MAX_TOKEN_ID = 2**31 - 1
MAX_DRAFTS = 2**31 - 1
MAX_MS = 1e12
MAX_LOGPROB = 0.01
"""The logprob of a certain token, with rounding. NaN is not below it."""
BYTES_A_TOKEN = 1024
"""Text, token id and the message around them. A token alone in its message takes some 270 bytes
beside its text."""
LOGPROB_BYTES_A_TOKEN = 4096
BYTES_A_PROMPT_TOKEN = 16
BYTES_OF_NO_TOKEN = 1024 * 1024
BYTES_OF_A_TRACE = events.MAX_TRACE_BYTES + 1024
MAX_ANSWER_BYTES = 512 * 1024 * 1024
FLOAT32_BYTES = 4
MAX_DIMENSIONS = 2**20


class AnswerFaultError(Exception):
    pass


def _most_bytes(request: Request, most: events.Usage) -> int:
    if not isinstance(request, GenerationRequest):
        return MAX_ANSWER_BYTES
    prompt_bytes, output_bytes = BYTES_A_PROMPT_TOKEN, BYTES_A_TOKEN
    if request.sampling.prompt_logprobs is not None:
        prompt_bytes += LOGPROB_BYTES_A_TOKEN
    if request.sampling.top_logprobs is not None:
        output_bytes += LOGPROB_BYTES_A_TOKEN
    of_tokens = prompt_bytes * most.prompt_tokens + output_bytes * most.completion_tokens
    return min(MAX_ANSWER_BYTES, BYTES_OF_NO_TOKEN + of_tokens)


class AnswerCheck:
    def __init__(
        self,
        request: Request,
        most: events.Usage,
        *,
        is_captured: bool = False,
        is_traced: bool = False,
    ) -> None:
        """``most``: the most usage over all prompts and choices. ``is_captured``: ``Traced`` was
        requested; ``is_traced``: ``StageTimes`` were."""
        self._request = request
        self._most = most
        self._may_trace = is_captured
        self._may_time = is_traced
        self.bytes_left = _most_bytes(request, most) + is_captured * BYTES_OF_A_TRACE
        self._num_prompts = num_prompts(request)
        num_answers = request.n if isinstance(request, GenerationRequest) else 0
        self._num_choices = self._num_prompts * num_answers
        self._num_open = self._num_choices
        self._num_calls: dict[int, int] = {}
        """How many calls each choice has begun; -1 once the choice has finished."""
        self._is_accepted = False
        self._is_only_counted = isinstance(request, TokenCountRequest | TokenizeRequest)
        self._num_tokens = 0
        self._num_vectors = 0
        self._vector_bytes: int | None = None

    def check(self, event: events.Event, num_bytes: int = 0) -> None:
        """Raises ``AnswerFaultError``."""
        self.bytes_left -= num_bytes
        if self.bytes_left < 0:
            raise AnswerFaultError("more bytes than its tokens can have")
        match event:
            case events.Delta():  # most events are this one
                self._tokens_of_choice(event.index, event.num_tokens)
                if event.logprobs is not None:
                    self._logprobs(event.logprobs)
            case events.ReasoningDelta():
                self._tokens_of_choice(event.index, event.num_tokens)
            case events.OutputTokens():
                self._of_open_choice(event.index)
                self._token_ids(event.token_ids)
            case events.ToolCallStarted() | events.ToolCallDelta():
                self._call(event)
            case events.ChoiceFinished():
                self._tokens_of_choice(event.index, event.num_tokens)
                self._num_calls[event.index] = -1
                self._num_open -= 1
            case events.Accepted():
                self._accepted(event)
            case events.PromptScored():
                self._require(self._num_choices > 0, "scores that were not asked for")
                self._require(0 <= event.prompt_index < self._num_prompts, "no such prompt")
                self._ranked(event.tokens)
            case events.Finished():
                self._finished(event)
            case events.EmbeddedPart() | events.Embedded():
                self._vectors(event)
            case events.TokensCounted() | events.Tokenized():
                self._counted(event)
            case events.Traced():
                self._require(self._may_trace, "a trace that was not asked for")
                self._require(len(event.text) <= events.MAX_TRACE_BYTES, "a long trace")
                self._may_trace = False
            case events.StageTimes():
                self._stage_times(event)
            case events.Failed():
                self._failure(event.failure)
                self._usage(event.usage)
            case events.Cancelled():
                self._usage(event.usage)
            case _:
                raise AnswerFaultError("an event out of place")

    def _tokens_of_choice(self, index: int, num_tokens: int) -> None:
        self._of_open_choice(index)
        num_all = self._num_tokens + num_tokens
        most = self._most.completion_tokens
        if num_tokens < 0 or num_all > most:
            raise AnswerFaultError(f"{num_all:.3e} tokens reported, {most} at most")
        self._num_tokens = num_all

    def _of_open_choice(self, index: int) -> None:
        if not 0 <= index < self._num_choices:
            raise AnswerFaultError(f"choice {index:.3e} of {self._num_choices}")
        if self._num_calls.get(index, 0) < 0:
            raise AnswerFaultError("an event of a choice that has finished")

    def _logprobs(self, logprobs: list[events.TextLogprob]) -> None:
        for one in logprobs:
            own = () if one.logprob is None else (one.logprob,)
            self._probabilities(*own, *(logprob for _, _, logprob in one.top))

    def _ranked(self, tokens: list[list[events.RankedToken]]) -> None:
        for one in chain.from_iterable(tokens):
            self._probabilities(one.logprob)
            self._require(0 <= one.token_id <= MAX_TOKEN_ID, "an impossible token id")
            self._require(0 < one.rank <= MAX_TOKEN_ID, "an impossible rank")

    def _probabilities(self, *logprobs: float) -> None:
        for logprob in logprobs:
            self._require(logprob <= MAX_LOGPROB, "a log probability of more than all")

    def _call(self, event: events.ToolCallStarted | events.ToolCallDelta) -> None:
        self._tokens_of_choice(event.index, event.num_tokens)
        begun = self._num_calls.get(event.index, 0)
        if isinstance(event, events.ToolCallStarted):
            self._require(event.call_index == begun, "a tool call out of order")
            self._num_calls[event.index] = begun + 1
        else:
            is_last = 0 <= event.call_index == begun - 1
            self._require(is_last, "arguments of another tool call")

    def _accepted(self, event: events.Accepted) -> None:
        self._require(not self._is_accepted, "accepted twice")
        self._require(not self._is_only_counted, "an answer of another kind")
        self._is_accepted = True
        self._prompt_tokens(event.prompt_tokens)
        self._require(event.num_lost_turns >= 0, "fewer than no turns left out")
        self._require(len(event.fingerprint) <= MAX_MESSAGE_CHARACTERS, "a long fingerprint")
        num_characters = sum(map(len, event.not_enforced))
        self._require(num_characters <= MAX_PLACES_CHARACTERS, "too many places in schemas")
        if (sampling := event.sampling) is not None:
            penalties = sampling.presence_penalty, sampling.frequency_penalty
            for value in (sampling.temperature, sampling.top_p, *penalties):
                self._require(math.isfinite(value), "a sampling option that is no number")
        if (prompts := event.prompt_token_ids) is not None:
            self._require(len(prompts) == self._num_prompts, "token ids of other prompts")
            for token_ids in prompts:
                self._token_ids(token_ids)

    def _finished(self, event: events.Finished) -> None:
        self._require(self._num_choices > 0, "the end of an answer that was not asked for")
        self._require(self._num_open == 0, f"finished with {self._num_open} open choices")
        self._usage(event.usage)
        if (timing := event.timing) is not None:
            self._durations(timing.queue_ms, timing.prefill_ms, timing.decode_ms)
            self._durations(timing.prefill_tokens)

    def _vectors(self, event: events.EmbeddedPart | events.Embedded) -> None:
        request = self._request
        if not isinstance(request, EmbeddingRequest | ScoreRequest):
            raise AnswerFaultError("vectors that were not asked for")
        import numpy as np  # takes 12 MB and 0.2 s, which embeddings alone are worth

        for vector in event.vectors:
            expected = len(vector) if self._vector_bytes is None else self._vector_bytes
            self._vector_bytes = expected
            most = FLOAT32_BYTES * (1 if isinstance(request, ScoreRequest) else MAX_DIMENSIONS)
            is_whole = 0 < len(vector) == expected <= most and len(vector) % FLOAT32_BYTES == 0
            self._require(is_whole, "a vector of another length")
            are_finite = bool(np.isfinite(np.frombuffer(vector, dtype="<f4")).all())
            self._require(are_finite, "a vector with what is no number")
        self._num_vectors += len(event.vectors)
        self._require(self._num_vectors <= self._num_prompts, "more vectors than prompts")
        if isinstance(event, events.Embedded):
            self._require(self._num_vectors == self._num_prompts, "fewer vectors than prompts")
            self._usage(event.usage)

    def _counted(self, event: events.TokensCounted | events.Tokenized) -> None:
        wants_count = isinstance(self._request, TokenCountRequest)
        is_wanted = self._is_only_counted and isinstance(event, events.TokensCounted) is wants_count
        self._require(is_wanted, "an answer of another kind")
        if isinstance(event, events.TokensCounted):
            self._require(0 <= event.prompt_tokens <= MAX_TOKEN_ID, "an impossible count")
        else:
            self._token_ids(event.token_ids)
            self._require(0 <= event.context_tokens <= MAX_TOKEN_ID, "an impossible context")

    def _failure(self, failure: events.Failure) -> None:
        self._require(CODE.fullmatch(failure.code) is not None, "a failure without a code")
        self._require(
            len(failure.message) <= MAX_MESSAGE_CHARACTERS
            and len(failure.param or "") <= MAX_MESSAGE_CHARACTERS,
            "a failure with a long message",
        )
        if (counted := failure.num_prompt_tokens) is not None:
            self._require(0 <= counted <= MAX_TOKEN_ID, "an impossible count")
        if (long := failure.too_long) is not None:
            for length in (long.prompt_tokens, long.context_tokens):
                self._require(0 <= length <= MAX_TOKEN_ID, "an impossible length")
        is_from_neuron = not (failure.model_id or failure.suggestion)
        self._require(is_from_neuron, "failure fields that placement alone sets")
        if (after_s := failure.retry_after_s) is not None:
            self._require(0 <= after_s <= MAX_RETRY_AFTER_S, "an impossible time of a retry")

    def _usage(self, usage: events.Usage | None) -> None:
        if usage is None:
            return
        self._prompt_tokens(usage.prompt_tokens)
        for noun, number, most in (
            ("cached tokens", usage.cached_tokens, usage.prompt_tokens),
            ("completion tokens", usage.completion_tokens, self._most.completion_tokens),
            ("reasoning tokens", usage.reasoning_tokens, usage.completion_tokens),
            ("accepted drafts", usage.accepted_drafts, MAX_DRAFTS),
            ("rejected drafts", usage.rejected_drafts, MAX_DRAFTS),
        ):
            if not 0 <= number <= most:
                raise AnswerFaultError(f"{number:.3e} {noun}, {most} at most")

    def _prompt_tokens(self, number: int) -> None:
        most = self._most.prompt_tokens
        if not 0 <= number <= most:
            raise AnswerFaultError(f"{number:.3e} prompt tokens, {most} at most")

    def _durations(self, *values: float | None) -> None:
        for value in values:
            self._require(value is None or 0 <= value <= MAX_MS, "an impossible duration")

    def _stage_times(self, times: events.StageTimes) -> None:
        self._require(self._may_time, "times that were not asked for")
        self._may_time = False
        self._durations(times.queue_ms, times.prefill_ms, times.decode_ms)
        is_possible = 0 <= times.prepare_ms <= times.total_ms <= MAX_MS
        self._require(is_possible, "an impossible duration")

    def _token_ids(self, token_ids: list[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) <= MAX_TOKEN_ID):
            raise AnswerFaultError("an impossible token id")

    def _require(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            raise AnswerFaultError(otherwise)
