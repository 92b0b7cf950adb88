"""Converts the token ids of engine steps to the events of one choice, and counts their tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from inference.neuron.text.request_details import RequestDetails
from inference.protocol.engine import (
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
    TokenLogprob,
)
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
from inference.text.choice_text import ChoiceText, Piece, ThoughtPart, merged
from inference.text.reasoning import TokenKind
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import CallArguments, CallStarted, TextPart

CALL_ID_DIGITS = 24


def call_id(request_id: str, index: int, call_index: int) -> str:
    """Deterministic."""
    name = f"{request_id}/{index}/{call_index}"
    return "call_" + hashlib.sha256(name.encode()).hexdigest()[:CALL_ID_DIGITS]


@dataclass(slots=True)
class Echo:
    text: str
    logprobs: list[TextLogprob] = field(default_factory=list)
    """All but the first token's come from the engine."""
    num_top: int | None = None
    """Number of most likely tokens reported beside each; ``None``: no logprobs are reported."""


class Choice:
    def __init__(
        self,
        *,
        request_id: str,
        text: ChoiceText,
        index: int = 0,
        echo: Echo | None = None,
        scores: tuple[int, int] | None = None,
        is_empty: bool = False,
        at_limit: Literal["length", "context"] = "length",
        returns_token_ids: bool = False,
        details: Sequence[RequestDetails] = (),
    ) -> None:
        """``scores``: the prompt's index, and the number of most likely tokens reported for each of
        its tokens. ``is_empty``: only the prompt is computed; the one token that the engine has to
        sample is not reported. ``at_limit``: why it ends at its last allowed token."""
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_accepted_drafts = 0
        self.num_rejected_drafts = 0
        self.has_finished = False
        self.has_begun = False
        """Its first token has come, so all of its prompt is computed."""
        self.timing: SequenceTiming | None = None
        self._num_prompt_tokens = 0
        self._request_id = request_id
        self._index = index
        self._text = text
        self._num_gained = {True: 0, False: 0}
        """Tokens of the answer (``True``) and of its thought since the last event of their kind:
        their text is held back or empty."""
        self._num_reported_tokens = 0
        self._num_calls = 0
        self._at_limit: FinishReason = at_limit
        self._echo = echo
        self._scores = scores
        self._is_empty = is_empty
        self._returns_token_ids = returns_token_ids
        self._details = details

    @property
    def num_reasoning_tokens(self) -> int:
        return self._text.num_thought_tokens

    def feed(self, step: SequenceStep) -> list[Event]:
        """A stop string ends the choice while the sequence still runs in the engine."""
        if step.num_cached_tokens is not None:
            self.num_cached_tokens = step.num_cached_tokens
        self.timing = step.timing
        if step.prompt_logprobs is not None:
            return self._scored(step.prompt_logprobs)
        self.has_begun = True
        pieces: list[Piece] = []
        logprobs: list[TextLogprob] = []
        if self._echo is not None:
            echo, self._echo = self._echo, None
            pieces.append(TextPart(echo.text))
            logprobs += echo.logprobs
        if self._is_empty:
            return [*self._events_of(pieces, logprobs), self._finished("length")]
        taken = self._take(step, pieces, logprobs)
        self.num_accepted_drafts += min(step.num_accepted_drafts, len(taken))
        self.num_rejected_drafts += step.num_drafted_tokens - step.num_accepted_drafts
        if self._text.stop is None and step.finish_reason is not None:
            pieces += self._text.flush()
            # The engine's count holds the stop token too, which is not among the ids.
            self.num_output_tokens = max(step.num_output_tokens, self.num_output_tokens)
        for one in self._details:
            one.output(self._index, taken, pieces)
        events: list[Event] = []
        if self._returns_token_ids and taken:
            events.append(
                OutputTokens(request_id=self._request_id, index=self._index, token_ids=taken)
            )
        events += self._events_of(pieces, logprobs)
        if (reason := self._end_reason(step)) is not None:
            events.append(self._finished(reason))
        return events

    def cut(self, used: SequenceUsage) -> None:
        self.has_finished = True
        self._num_prompt_tokens = used.num_prompt_tokens
        if not self.has_begun:
            self.num_cached_tokens = used.num_cached_tokens
        if not self._is_empty:
            self.num_output_tokens = max(used.num_output_tokens, self.num_output_tokens)

    def num_computed_tokens(self, num_prompt_tokens: int) -> int:
        return num_prompt_tokens if self.has_begun else self._num_prompt_tokens

    def _take(
        self, step: SequenceStep, pieces: list[Piece], logprobs: list[TextLogprob]
    ) -> list[int]:
        for position, token_id in enumerate(step.token_ids, start=1):
            kind, found = self._text.feed(token_id)
            pieces += found
            self.num_output_tokens += 1
            is_answer = kind is TokenKind.ANSWER
            self._num_gained[is_answer] += 1
            if step.logprobs and is_answer:  # thinking has none
                logprobs.append(text_logprob(step.logprobs[position - 1], self._text.tokenizer))
            if self._text.stop is not None:
                return step.token_ids[:position]
        return step.token_ids

    def _scored(self, prompt_logprobs: Sequence[TokenLogprob]) -> list[Event]:
        tokenizer, echo = self._text.tokenizer, self._echo
        if echo is not None and echo.num_top is not None:
            for entry in prompt_logprobs:
                shown = msgspec.structs.replace(entry, top=entry.top[: echo.num_top])
                echo.logprobs.append(text_logprob(shown, tokenizer))
        if self._scores is None:
            return []
        prompt_index, num_top = self._scores
        tokens = [_ranked(entry, num_top, tokenizer) for entry in prompt_logprobs]
        return [PromptScored(request_id=self._request_id, prompt_index=prompt_index, tokens=tokens)]

    def _end_reason(self, step: SequenceStep) -> FinishReason | None:
        if self._text.stop is not None:
            return "stop"
        if step.finish_reason == "length":
            return self._at_limit
        if step.finish_reason == "stop":
            return "tool_calls" if self._num_calls else "stop"
        return None

    def _finished(self, reason: FinishReason) -> ChoiceFinished:
        """Also counts the tokens that no event has counted."""
        self.has_finished = True
        return ChoiceFinished(
            request_id=self._request_id,
            index=self._index,
            reason=reason,
            stop_sequence=self._text.stop,
            num_tokens=self.num_output_tokens - self._num_reported_tokens,
        )

    def _events_of(self, pieces: Sequence[Piece], logprobs: list[TextLogprob]) -> list[Event]:
        """``logprobs`` go with the step's first text, or alone where it has none."""
        events: list[Event] = []
        for piece in merged(pieces):
            if isinstance(piece, TextPart):
                events.append(self._delta(piece.text, logprobs))
                logprobs = []
            else:
                events.append(self._event(piece))
        if logprobs:
            events.append(self._delta("", logprobs))
        return events

    def _delta(self, text: str, logprobs: list[TextLogprob]) -> Delta:
        return Delta(**self._counting(is_answer=True), text=text, logprobs=logprobs or None)

    def _event(self, piece: ThoughtPart | CallStarted | CallArguments) -> Event:
        common = self._counting(is_answer=not isinstance(piece, ThoughtPart))
        match piece:
            case ThoughtPart():
                return ReasoningDelta(
                    **common,
                    text=piece.text,
                    opens=piece.opens,
                    closes=piece.closes,
                    missing_close=piece.missing_close,
                )
            case CallStarted(name=name):
                call_index, self._num_calls = self._num_calls, self._num_calls + 1
                identity = call_id(self._request_id, self._index, call_index)
                return ToolCallStarted(**common, call_index=call_index, call_id=identity, name=name)
            case CallArguments(fragment=fragment):
                return ToolCallDelta(**common, call_index=self._num_calls - 1, arguments=fragment)

    def _counting(self, *, is_answer: bool) -> dict[str, Any]:
        num_tokens, self._num_gained[is_answer] = self._num_gained[is_answer], 0
        self._num_reported_tokens += num_tokens
        return {"request_id": self._request_id, "index": self._index, "num_tokens": num_tokens}


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


def _ranked(entry: TokenLogprob, num_top: int, tokenizer: Tokenizer) -> list[RankedToken]:
    assert entry.logprob is not None and entry.rank is not None, "not the engine's own"
    found = [(entry.token_id, entry.logprob, entry.rank)]
    best = enumerate(entry.top[:num_top], start=1)
    found += [(token_id, logprob, rank) for rank, (token_id, logprob) in best]
    return [
        RankedToken(
            token_id=token_id, text=_token_text(token_id, tokenizer), logprob=logprob, rank=rank
        )
        for token_id, logprob, rank in found
    ]
