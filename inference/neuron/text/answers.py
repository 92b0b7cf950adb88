"""Converts the token ids of engine steps to a request's text events.

    SequenceStep ─▶ Choice: ChoiceText ─▶ Delta | ReasoningDelta | ToolCall… ─▶ ChoiceFinished
    every choice finished ─▶ Answer: Finished, with the sum of what they used
    a choice that the engine cut off ─▶ counted, and the request cannot finish any more

Owned by the thread that applies engine outputs, one step at a time. Knows no Redis and no process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Literal

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.choice_events import (
    ChoiceEvents,
    Echo,
    PromptScores,
    echo_of,
    text_logprob,
)
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompts import Prepared
from inference.neuron.text.request_details import ChoiceDetails, RequestDetails
from inference.protocol.engine import (
    SequencesEmbedded,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
)
from inference.protocol.events import Event, Failure, Finished, FinishReason, TextLogprob, Usage
from inference.protocol.generation import ChatInput, GenerationRequest
from inference.protocol.sampling import TokenLogprob
from inference.text.answers.choice_text import ChoiceText, Piece
from inference.text.answers.parts import TextPart, TokenKind
from inference.text.tool_calls.call_parser import CallParser, Decision


class Choice:
    def __init__(
        self,
        *,
        request_id: str,
        text: ChoiceText,
        index: int = 0,
        echo: Echo | None = None,
        scores: PromptScores | None = None,
        is_empty: bool = False,
        at_limit: Literal["length", "context"] = "length",
        returns_token_ids: bool = False,
        details: Sequence[ChoiceDetails] = (),
    ) -> None:
        """``is_empty``: only the prompt is computed; the one token that the engine has to sample is
        not reported. ``at_limit``: why the answer ends when it has reached its last allowed
        token."""
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_accepted_drafts = 0
        self.num_rejected_drafts = 0
        self.has_finished = False
        self.has_begun = False
        """Whether its first token has come, so that all of its prompt is computed."""
        self.timing: SequenceTiming | None = None
        """``None`` until the engine has brought it to its end."""
        self._num_prompt_tokens = 0
        """The engine's usage of a choice that it cut off before that."""
        self._text = text
        self._unsettled: deque[TokenLogprob | None] = deque()
        """Log probabilities of tokens that may or may not turn out to be answer."""
        self._events = ChoiceEvents(request_id, index)
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
        """The events of one engine step. Ends with ``ChoiceFinished`` when the choice ended, by the
        engine's word or, while the sequence still runs there, by a stop string."""
        if step.num_cached_tokens is not None:
            self.num_cached_tokens = step.num_cached_tokens
        self.timing = step.timing
        if step.prompt_logprobs is not None:
            return self._scored(step.prompt_logprobs)
        self.has_begun = True
        if self._is_empty:
            return self._end_at_once()
        num_before = self.num_output_tokens
        pieces, logprobs = self._take(step)
        taken = step.token_ids[: self.num_output_tokens - num_before]
        self.num_accepted_drafts += min(step.num_accepted_drafts, len(taken))
        self.num_rejected_drafts += step.num_drafted_tokens - step.num_accepted_drafts
        if self._text.stop is None and step.finish_reason is not None:
            kinds, found = self._text.flush()
            pieces += found
            logprobs += self._settle(kinds)
            # The engine's count holds the stop token too, which is not among the ids.
            self.num_output_tokens = max(step.num_output_tokens, self.num_output_tokens)
        for one in self._details:
            one.tokens(taken)
            one.pieces(pieces)
        events = self._events.of(pieces, logprobs)
        if self._returns_token_ids and taken:
            events.insert(0, self._events.tokens(taken))
        reason = self._end_reason(step)
        if reason is not None:
            self.has_finished = True
            events.append(self._events.finished(reason, self._text.stop, self.num_output_tokens))
        return events

    def cut(self, used: SequenceUsage) -> None:
        self.has_finished = True
        self._num_prompt_tokens = used.num_prompt_tokens
        if not self.has_begun:
            self.num_cached_tokens = used.num_cached_tokens
        if not self._is_empty:
            self.num_output_tokens = max(used.num_output_tokens, self.num_output_tokens)

    def num_computed_tokens(self, num_prompt_tokens: int) -> int:
        """Tokens computed of a prompt that long, as far as known."""
        return num_prompt_tokens if self.has_begun else self._num_prompt_tokens

    def _take(self, step: SequenceStep) -> tuple[list[Piece], list[TextLogprob]]:
        """Token by token, up to a stop string. Thinking has no logprobs."""
        pieces: list[Piece] = []
        logprobs: list[TextLogprob] = []
        if self._echo is not None:
            echo, self._echo = self._echo, None
            pieces.append(TextPart(echo.text))
            logprobs += echo.logprobs
        for position, token_id in enumerate(step.token_ids):
            kinds, found = self._text.feed(token_id)
            pieces += found
            self.num_output_tokens += 1
            self._unsettled.append(step.logprobs[position] if step.logprobs else None)
            logprobs += self._settle(kinds)
            if self._text.stop is not None:
                break
        return pieces, logprobs

    def _settle(self, kinds: Sequence[TokenKind]) -> list[TextLogprob]:
        """Assign kinds to the next unsettled tokens. Returns the log probabilities of the answer's
        tokens."""
        settled = []
        for kind in kinds:
            entry = self._unsettled.popleft()
            self._events.count_token(is_answer=kind is TokenKind.ANSWER)
            if entry is not None and kind is TokenKind.ANSWER:
                settled.append(text_logprob(entry, self._text.tokenizer))
        return settled

    def _scored(self, prompt_logprobs: Sequence[TokenLogprob]) -> list[Event]:
        if self._echo is not None:
            self._echo.keep(prompt_logprobs, self._text.tokenizer)
        if self._scores is None:
            return []
        return [self._scores.event(prompt_logprobs, self._text.tokenizer)]

    def _end_at_once(self) -> list[Event]:
        self.has_finished = True
        echo = self._echo
        echoed = [] if echo is None else self._events.of([TextPart(echo.text)], echo.logprobs)
        return [*echoed, self._events.finished("length", None, 0)]

    def _end_reason(self, step: SequenceStep) -> FinishReason | None:
        if self._text.stop is not None:
            return "stop"
        if step.finish_reason == "length":
            return self._at_limit
        if step.finish_reason == "stop":
            return "tool_calls" if self._events.num_calls else "stop"
        return None


class Answer:
    """All choices of one request: ``n`` in a row for each of its prompts, whose lengths in tokens
    are ``prompt_lengths``."""

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
        """Usage computed so far, as far as known, each prompt once. ``None``: none."""
        prompt_tokens = cached_tokens = 0
        for prompt_index, length in enumerate(self._prompt_lengths):
            first = prompt_index * self._n
            choices = self._choices[first : first + self._n]
            computed = [choice.num_computed_tokens(length) for choice in choices]
            prompt_tokens += max(computed)
            if max(computed) > 0:
                # The first to compute it: the others share its blocks.
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
) -> Answer:
    """``details`` describe the parsed parts of the answer. Raises
    ``RequestRefusedError`` for an empty stop string."""
    if not all(request.stop):
        raise RequestRefusedError(
            Failure(code="invalid_value", message="a stop string is empty", param="stop")
        )
    tool_names = [tool.name for tool in prepared.tools]
    described = [
        [one.choice(index, tool_names) for one in details]
        for index in range(len(prepared.prompts) * request.n)
    ]
    choices = [
        Choice(
            request_id=request_id,
            index=index,
            text=_choice_text(request, prepared, text, choice_details),
            echo=echo_of(index // request.n, request, prepared, text) if request.echo else None,
            scores=_scores(request_id, index, request),
            is_empty=request.sampling.max_tokens == 0,
            at_limit=prepared.limit.reason,
            returns_token_ids=request.returns_token_ids,
            details=choice_details,
        )
        for index, choice_details in enumerate(described)
    ]
    prompt_lengths = [len(prompt) for prompt in prepared.prompts]
    return Answer(request_id, choices, prompt_lengths=prompt_lengths, n=request.n)


def _scores(request_id: str, index: int, request: GenerationRequest) -> PromptScores | None:
    """The first choice of each prompt reports its prompt's scores."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None or index % request.n:
        return None
    return PromptScores(request_id, index // request.n, num_top)


def _choice_text(
    request: GenerationRequest,
    prepared: Prepared,
    text: ModelText,
    details: Sequence[ChoiceDetails],
) -> ChoiceText:
    tools = prepared.tools
    calls = None
    parser = None
    if isinstance(request.input, ChatInput) and tools:
        calls = text.tool_format_of(request.input)
        parser = None if calls is None else calls.parser(tools)
    if isinstance(parser, CallParser):
        parser.streams_arguments = prepared.params.grammar is not None
        parser.on_decision = partial(_describe, details) if details else None
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


def _describe(details: Sequence[ChoiceDetails], decision: Decision) -> None:
    for one in details:
        one.decision(decision)
