"""Answers of a tiny model as steps, and the events made of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from inference.neuron.text.answers import Answer
from inference.neuron.text.choice_events import Choice
from inference.protocol.engine import SequenceStep
from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.protocol.sampling import TokenLogprob
from inference.text.answers.choice_text import ChoiceText
from inference.text.answers.reasoning import find_markers
from inference.text.tokens.tokenizer import Tokenizer
from tests.inference.text.marked_calls import MarkedCalls


@pytest.fixture(scope="module")
def tokenizer(thinking_dir: Path) -> Tokenizer:
    return Tokenizer.load(thinking_dir)


def text_of(tokenizer: Tokenizer, **kwargs: object) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=find_markers(tokenizer, None),
        tool_calls=form.parser([]),
        shown_token_ids=form.shown_token_ids(tokenizer),
        **kwargs,  # type: ignore[arg-type]
    )


def steps_of(ids: list[int], cuts: list[int], reason: str | None = "stop") -> list[SequenceStep]:
    """``ids`` cut into steps; the last one ends it and counts its stop token."""
    borders = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    steps = [
        SequenceStep(
            sequence_id="r/0",
            token_ids=ids[start:end],
            logprobs=[TokenLogprob(token_id, -0.5) for token_id in ids[start:end]],
            num_cached_tokens=3 if start == 0 else None,
        )
        for start, end in itertools.pairwise(borders)
    ]
    last = SequenceStep(
        sequence_id="r/0",
        token_ids=[],
        finish_reason=reason,  # type: ignore[arg-type]
        num_output_tokens=len(ids) + 1,
    )
    return [*steps, last] if reason else steps


def events_of_steps(answer: Answer, steps: list[SequenceStep], index: int = 0) -> list[Event]:
    events: list[Event] = []
    for step in steps:
        if not answer.has_finished(index):
            events += answer.feed(index, step)
    return events


def answer_of(*choices: Choice, n: int = 1) -> Answer:
    return Answer("r", choices, prompt_lengths=[5] * (len(choices) // n), n=n)


class Folded:
    """What a body encoder makes of the events."""

    def __init__(self, events: list[Event]) -> None:
        self.reported: list[list[str]] = []
        self.logprobs: list[TextLogprob] = []
        self.ends: list[Event] = []
        self.num_tokens = 0
        """The tokens of all events; the split decides which event counts a token."""
        for event in events:
            self.num_tokens += getattr(event, "num_tokens", 0)
            match event:
                case Delta(text=text, logprobs=logprobs):
                    self.logprobs += logprobs or []
                    self._add("text", text)
                case ReasoningDelta(text=text, opens=opens, closes=closes):
                    self._add("thought", f"{'«' if opens else ''}{text}{'»' if closes else ''}")
                case ToolCallStarted(call_id=identity, name=name):
                    self.reported.append(["call", f"{identity} {name}"])
                case ToolCallDelta(arguments=arguments):
                    self._add("arguments", arguments)
                case ChoiceFinished():
                    self.ends.append(msgspec.structs.replace(event, num_tokens=0))
                case _:
                    self.ends.append(event)

    def _add(self, kind: str, text: str) -> None:
        if self.reported and self.reported[-1][0] == kind:
            self.reported[-1][1] += text
        elif text:
            self.reported.append([kind, text])


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def events_of(
    tokenizer: Tokenizer, text: str, reason: str | None = "stop", **kwargs: object
) -> list[Event]:
    choice = Choice(request_id="r", text=text_of(tokenizer), **kwargs)  # type: ignore[arg-type]
    return events_of_steps(answer_of(choice), steps_of(ids_of(tokenizer, text), [], reason))
