"""Converts one choice's text pieces to events and merges neighbours.

Owns which tokens a delta counts and what tool calls are called. ``Echo`` puts a prompt's text
before its answer, with the tokens' logprobs where the client asked for them; ``PromptScores``
reports a prompt's logprobs by themselves. Knows no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompts import Prepared
from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    FinishReason,
    OutputTokens,
    PromptScored,
    RankedToken,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.protocol.generation import GenerationRequest, TextInput
from inference.protocol.sampling import TokenLogprob
from inference.text.answers.choice_text import Piece, ThoughtPart, merged
from inference.text.answers.parts import CallArguments, CallStarted, TextPart
from inference.text.tokens.tokenizer import Detokenizer, Tokenizer

CALL_ID_DIGITS = 24


def call_id(request_id: str, index: int, call_index: int) -> str:
    """The same for the same call of the same choice, and different from every other."""
    name = f"{request_id}/{index}/{call_index}"
    return "call_" + hashlib.sha256(name.encode()).hexdigest()[:CALL_ID_DIGITS]


class ChoiceEvents:
    def __init__(self, request_id: str, index: int) -> None:
        self.num_calls = 0
        self._request_id = request_id
        self._index = index
        self._num_answer_tokens = 0
        self._num_thought_tokens = 0
        """Gained since the last delta of their kind: their text is held back or empty. Markers of a
        thinking block count as thought here."""
        self._num_reported_tokens = 0

    def count_token(self, *, is_answer: bool) -> None:
        if is_answer:
            self._num_answer_tokens += 1
        else:
            self._num_thought_tokens += 1

    def of(self, pieces: Sequence[Piece], logprobs: list[TextLogprob]) -> list[Event]:
        """``logprobs`` go with the step's first text, or alone where it has none."""
        events: list[Event] = []
        for piece in merged(pieces):
            reported = logprobs if isinstance(piece, TextPart) else []
            events.append(self._event(piece, reported))
            if reported:
                logprobs = []
        if logprobs:
            events.append(self._delta("", logprobs))
        return events

    def tokens(self, token_ids: Sequence[int]) -> OutputTokens:
        return OutputTokens(
            request_id=self._request_id, index=self._index, token_ids=list(token_ids)
        )

    def finished(
        self, reason: FinishReason, stop: str | None, num_output_tokens: int
    ) -> ChoiceFinished:
        """``num_output_tokens`` are the choice's; this event counts those that no delta counted."""
        return ChoiceFinished(
            request_id=self._request_id,
            index=self._index,
            reason=reason,
            stop_sequence=stop,
            num_tokens=num_output_tokens - self._num_reported_tokens,
        )

    def _event(self, piece: Piece, logprobs: list[TextLogprob]) -> Event:
        match piece:
            case TextPart(text=text):
                return self._delta(text, logprobs)
            case ThoughtPart():
                return self._reasoning_delta(piece)
            case CallStarted(name=name):
                return self._call_started(name)
            case CallArguments(fragment=fragment):
                return ToolCallDelta(
                    request_id=self._request_id,
                    index=self._index,
                    call_index=self.num_calls - 1,
                    arguments=fragment,
                    num_tokens=self._take_answer_tokens(),
                )

    def _delta(self, text: str, logprobs: list[TextLogprob]) -> Delta:
        return Delta(
            request_id=self._request_id,
            index=self._index,
            text=text,
            num_tokens=self._take_answer_tokens(),
            logprobs=logprobs or None,
        )

    def _reasoning_delta(self, part: ThoughtPart) -> ReasoningDelta:
        return ReasoningDelta(
            request_id=self._request_id,
            index=self._index,
            text=part.text,
            num_tokens=self._take_thought_tokens(),
            opens=part.opens,
            closes=part.closes,
            missing_close=part.missing_close,
        )

    def _call_started(self, name: str) -> ToolCallStarted:
        call_index, self.num_calls = self.num_calls, self.num_calls + 1
        return ToolCallStarted(
            request_id=self._request_id,
            index=self._index,
            call_index=call_index,
            call_id=call_id(self._request_id, self._index, call_index),
            name=name,
            num_tokens=self._take_answer_tokens(),
        )

    def _take_answer_tokens(self) -> int:
        num_tokens, self._num_answer_tokens = self._num_answer_tokens, 0
        self._num_reported_tokens += num_tokens
        return num_tokens

    def _take_thought_tokens(self) -> int:
        num_tokens, self._num_thought_tokens = self._num_thought_tokens, 0
        self._num_reported_tokens += num_tokens
        return num_tokens


@dataclass(slots=True)
class Echo:
    text: str
    logprobs: list[TextLogprob] = field(default_factory=list)
    """The log probabilities of the prompt's tokens; all but the first's come from the engine."""
    num_top: int | None = None
    """Number of most likely tokens reported beside each; ``None``: no logprobs are reported."""

    def keep(self, prompt_logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> None:
        if self.num_top is None:
            return
        for entry in prompt_logprobs:
            shown = msgspec.structs.replace(entry, top=entry.top[: self.num_top])
            self.logprobs.append(text_logprob(shown, tokenizer))


def echo_of(index: int, request: GenerationRequest, prepared: Prepared, text: ModelText) -> Echo:
    echo = Echo(_text(index, request, prepared, text), num_top=request.sampling.top_logprobs)
    if echo.num_top is not None:
        first_token_id = prepared.prompts[index][0]
        echo.logprobs.append(text_logprob(TokenLogprob(first_token_id, None), text.tokenizer))
    return echo


def _text(index: int, request: GenerationRequest, prepared: Prepared, text: ModelText) -> str:
    if isinstance(request.input, TextInput):
        return request.input.texts[index]
    detokenizer = Detokenizer(text.tokenizer)
    return detokenizer.feed(prepared.prompts[index]) + detokenizer.flush()


def _token_text(token_id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.bytes_of(token_id).decode("utf-8", errors="replace")


def text_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> TextLogprob:
    return TextLogprob(
        token=_token_text(entry.token_id, tokenizer),
        token_bytes=tokenizer.bytes_of(entry.token_id),
        logprob=entry.logprob,
        top=[
            (_token_text(token_id, tokenizer), tokenizer.bytes_of(token_id), logprob)
            for token_id, logprob in entry.top
        ],
    )


@dataclass(frozen=True, slots=True)
class PromptScores:
    request_id: str
    prompt_index: int
    num_top: int

    def event(self, logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer) -> PromptScored:
        return PromptScored(
            request_id=self.request_id,
            prompt_index=self.prompt_index,
            tokens=[self._ranked(entry, tokenizer) for entry in logprobs],
        )

    def _ranked(self, entry: TokenLogprob, tokenizer: Tokenizer) -> list[RankedToken]:
        assert entry.logprob is not None and entry.rank is not None, "not the engine's own"
        found = [(entry.token_id, entry.logprob, entry.rank)]
        best = enumerate(entry.top[: self.num_top], start=1)
        found += [(token_id, logprob, rank) for rank, (token_id, logprob) in best]
        return [
            RankedToken(
                token_id=token_id,
                text=_token_text(token_id, tokenizer),
                logprob=logprob,
                rank=rank,
            )
            for token_id, logprob, rank in found
        ]
