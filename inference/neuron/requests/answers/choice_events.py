"""Converts one choice's text pieces to events and merges neighbours.

Owns which tokens a delta counts and what tool calls are called. Knows no token, no engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    FinishReason,
    OutputTokens,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.text.answers.choice_text import Piece, ThoughtPart, merged
from inference.text.answers.parts import CallArguments, CallStarted, TextPart

CALL_ID_DIGITS = 24


def call_id(request_id: str, index: int, call_index: int) -> str:
    """The same for the same call of the same choice; unlike every other."""
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
