"""Steps to events: any split of the tokens gives the same answer, and each choice ends once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.text.answers import TextAnswer
from inference.neuron.text.choice_events import Choice, Echo, call_id
from inference.protocol import events as protocol
from inference.protocol.engine import SequenceStep, SequenceTiming, TokenLogprob
from inference.text.choice_text import ChoiceText
from inference.text.reasoning import find_markers
from inference.text.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.text.marked_calls import MarkedCalls

WORDS = [
    "<think>",
    "</think>",
    "\n",
    "so",
    "yes",
    "END",
    "E",
    "<call>",
    "</call>",
    'f {"a":1}',
    "🙂",
]
CUTS = st.lists(st.integers(0, 40), max_size=4)


@pytest.fixture(scope="module")
def tokenizer(thinking_dir: Path) -> Tokenizer:
    return Tokenizer.load(thinking_dir)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def text_of(tokenizer: Tokenizer, **options: Any) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=find_markers(tokenizer, None),
        tool_calls=form.parser([]),
        shown_token_ids=form.shown_token_ids(tokenizer),
        **options,
    )


def step(*token_ids: int, **fields: Any) -> SequenceStep:
    return SequenceStep(sequence_id="r/0", token_ids=list(token_ids), **fields)


def steps_of(ids: list[int], cuts: Sequence[int] = (), reason: Any = "stop") -> list[SequenceStep]:
    """``ids`` cut into steps; the last one ends it and counts its stop token."""
    borders = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    steps = [
        step(
            *ids[start:end],
            logprobs=[TokenLogprob(token_id, -0.5) for token_id in ids[start:end]],
            num_cached_tokens=3 if start == 0 else None,
        )
        for start, end in itertools.pairwise(borders)
    ]
    return [*steps, step(finish_reason=reason, num_output_tokens=len(ids) + 1)]


def answer_of(*choices: Choice, n: int = 1) -> TextAnswer:
    return TextAnswer("r", choices, prompt_lengths=[5] * (len(choices) // n), n=n)


def events_of_steps(
    answer: TextAnswer | Choice, steps: list[SequenceStep], index: int = 0
) -> list[Any]:
    events: list[protocol.Event] = []
    made = answer_of(answer) if isinstance(answer, Choice) else answer
    for one in steps:
        if not made.has_finished(index):
            events += made.feed(index, one)
    return events


def events_of(tokenizer: Tokenizer, text: str, reason: str = "stop", **choice: Any) -> list[Any]:
    made = Choice(request_id="r", text=text_of(tokenizer), **choice)
    return events_of_steps(made, steps_of(ids_of(tokenizer, text), reason=reason))


class Folded:
    """What a body encoder makes of the events."""

    def __init__(self, events: list[protocol.Event]) -> None:
        self.reported: list[list[str]] = []
        self.logprobs: list[protocol.TextLogprob] = []
        self.ends: list[protocol.Event] = []
        self.num_tokens = sum(getattr(event, "num_tokens", 0) for event in events)
        """The tokens of all events; the split decides which event counts a token."""
        for event in events:
            match event:
                case protocol.Delta():
                    self.logprobs += event.logprobs or []
                    self._add("text", event.text)
                case protocol.ReasoningDelta(text=text, opens=opens, closes=closes):
                    self._add("thought", "«" * bool(opens) + text + "»" * bool(closes))
                case protocol.ToolCallStarted():
                    self.reported.append(["call", f"{event.call_id} {event.name}"])
                case protocol.ToolCallDelta():
                    self._add("arguments", event.arguments)
                case protocol.ChoiceFinished():
                    self.ends.append(msgspec.structs.replace(event, num_tokens=0))
                case _:
                    self.ends.append(event)

    def _add(self, kind: str, text: str) -> None:
        if self.reported and self.reported[-1][0] == kind:
            self.reported[-1][1] += text
        elif text:
            self.reported.append([kind, text])


@given(
    text=st.lists(st.sampled_from(WORDS), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    starts_thinking=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
)
def test_any_split_gives_the_same_events(
    tokenizer: Tokenizer, text: str, cuts: list[int], starts_thinking: bool, reason: str
) -> None:
    ids = ids_of(tokenizer, text)
    folded = []
    for some_cuts in ([], cuts, list(range(len(ids)))):
        choice_text = text_of(tokenizer, stop=["END"], starts_thinking=starts_thinking)
        choice = Choice(request_id="r", text=choice_text)
        folded.append(Folded(events_of_steps(choice, steps_of(ids, some_cuts, reason))))
    whole, split, single = folded
    assert whole.reported == split.reported == single.reported
    assert whole.ends == split.ends == single.ends
    assert whole.logprobs == split.logprobs == single.logprobs
    chosen, finished = whole.ends
    assert isinstance(chosen, protocol.ChoiceFinished) and isinstance(finished, protocol.Finished)
    for fold in folded:
        assert fold.num_tokens == finished.usage.completion_tokens


@each_case(
    ("text", "engines", "at_limit", "reason"),
    [
        ("yes", "stop", "length", "stop"),
        ("<call>f {}</call>", "stop", "length", "tool_calls"),
        ("<call>f {", "stop", "length", "stop"),
        ("<call>f {}</call>", "length", "length", "length"),
        ("<call>f {}</call>", "length", "context", "context"),
        ("yes", "stop", "context", "stop"),
    ],
)
def test_why_a_choice_ended(
    tokenizer: Tokenizer, text: str, engines: str, at_limit: str, reason: str
) -> None:
    events = events_of(tokenizer, text, engines, at_limit=at_limit)
    (finished,) = (event for event in events if isinstance(event, protocol.ChoiceFinished))
    assert finished.reason == reason


def test_calls_are_named_and_thoughts_and_the_stop_token_counted(tokenizer: Tokenizer) -> None:
    calls = "<call>f {}</call><call>g {}</call>"
    events = events_of(tokenizer, f"<think>so</think>yes{calls}", index=0)
    started = [event for event in events if isinstance(event, protocol.ToolCallStarted)]
    assert [(call.name, call.call_index) for call in started] == [("f", 0), ("g", 1)]
    ids = {call.call_id for call in started} | {call_id("r", 1, 0), call_id("s", 0, 0)}
    assert len(ids) == 4
    assert started[0].call_id == call_id("r", 0, 0)
    assert len(started[0].call_id) == len("call_") + 24
    deltas = [event for event in events if isinstance(event, protocol.ToolCallDelta)]
    assert [(delta.call_index, delta.arguments) for delta in deltas] == [(0, "{}"), (1, "{}")]
    assert "".join(one.token for one in Folded(events).logprobs) == f"yes{calls}", "no thoughts"
    usage, num_thought = events[-1].usage, len(ids_of(tokenizer, "so"))
    num_shown = len(ids_of(tokenizer, f"yes{calls}"))
    assert usage.reasoning_tokens == num_thought
    assert usage.completion_tokens == 2 + num_thought + num_shown + 1
    assert usage.cached_tokens == 3
    thoughts = [event for event in events if isinstance(event, protocol.ReasoningDelta)]
    assert sum(event.num_tokens for event in thoughts) == num_thought + 2


def test_a_stop_string_ends_the_count_of_tokens_and_drafts(tokenizer: Tokenizer) -> None:
    before = ids_of(tokenizer, "yes")
    ids = [*before, *ids_of(tokenizer, "E"), *ids_of(tokenizer, "more")]
    answer = answer_of(Choice(request_id="r", text=ChoiceText(tokenizer, stop=["E"])))
    drafts = {"num_drafted_tokens": len(ids) + 1, "num_accepted_drafts": len(ids) - 1}
    steps = [step(ids[0], num_cached_tokens=0, num_drafted_tokens=3), step(*ids[1:], **drafts)]
    *_, chosen, finished = events_of_steps(answer, steps)
    assert isinstance(chosen, protocol.ChoiceFinished) and isinstance(finished, protocol.Finished)
    assert answer.has_finished(0)
    assert finished.usage.completion_tokens == len(before) + 1
    assert finished.usage.accepted_drafts == len(before)
    assert finished.usage.rejected_drafts == 3 + 2


def test_an_answer_ends_with_its_last_choice_and_times(tokenizer: Tokenizer) -> None:
    timing = SequenceTiming(prefill_ms=5.0, decode_ms=20.0, prefill_tokens=2)
    *steps, last = steps_of(ids_of(tokenizer, "Paris is nice"))
    steps.append(msgspec.structs.replace(last, timing=timing))

    def end_of(order: Sequence[int], n: int, **options: Any) -> protocol.Finished:
        texts = [text_of(tokenizer, **options) for _ in order]
        choices = [Choice(request_id="r", text=text, index=i) for i, text in enumerate(texts)]
        answer = answer_of(*choices, n=n)
        *others, end = [events_of_steps(answer, steps, index)[-1] for index in order]
        assert not [one for one in others if isinstance(one, protocol.Finished)]
        assert isinstance(end, protocol.Finished)
        return end

    finished = end_of((2, 0, 3, 1), n=2)
    assert finished.usage.cached_tokens == 6, "the two prompts, each counted once"
    assert end_of([0], n=1).timing == timing
    assert finished.timing is end_of([0], n=1, stop=["is"]).timing is None


def test_a_prompts_logprobs_come_with_its_echo(tokenizer: Tokenizer) -> None:
    prompt, answer = ids_of(tokenizer, "The "), ids_of(tokenizer, "yes")
    echo = Echo(
        "The ", [protocol.TextLogprob(token="T", token_bytes=b"T", logprob=None)], num_top=0
    )
    choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=echo)
    scored = [TokenLogprob(token_id, -0.5) for token_id in prompt[1:]]
    of_prompt = [step(prompt_logprobs=part) for part in (scored[:1], scored[1:]) if part]
    of_answer = [TokenLogprob(token_id, -0.25) for token_id in answer]
    count = {"finish_reason": "length", "num_output_tokens": len(answer)}
    events = events_of_steps(choice, [*of_prompt, step(*answer, logprobs=of_answer, **count)])
    (delta,) = (event for event in events if isinstance(event, protocol.Delta))
    assert delta.text == "The yes" and delta.num_tokens == len(answer)
    expected = [None, *[-0.5] * len(scored), *[-0.25] * len(answer)]
    assert [token.logprob for token in delta.logprobs or []] == expected


def test_a_prompts_scores_are_reported_as_they_come(tokenizer: Tokenizer) -> None:
    first, second = ids_of(tokenizer, "no")
    best = [(first, -0.25), (second, -1.5)]
    echo = Echo("The ", num_top=1)
    choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=echo, scores=(3, 2))
    scored = [TokenLogprob(second, -1.5, best, 2)]
    (event,) = events_of_steps(choice, [step(prompt_logprobs=scored)])
    assert isinstance(event, protocol.PromptScored) and event.prompt_index == 3
    reported = [[(one.text, one.logprob, one.rank) for one in token] for token in event.tokens]
    assert reported == [[("o", -1.5, 2), ("n", -0.25, 1), ("o", -1.5, 2)]]
    assert [len(token.top) for token in echo.logprobs] == [1]


def test_a_prompt_alone_reports_and_counts_no_token(tokenizer: Tokenizer) -> None:
    sampled = step(ids_of(tokenizer, "yes")[0], finish_reason="length", num_output_tokens=1)
    for echo, reported in ((Echo("The "), [["text", "The "]]), (None, [])):
        choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=echo, is_empty=True)
        events = events_of_steps(choice, [sampled])
        assert Folded(events).reported == reported
        assert events[-1].usage.completion_tokens == 0


@given(cuts=CUTS)
def test_token_ids_are_reported_up_to_the_stop(tokenizer: Tokenizer, cuts: list[int]) -> None:
    ids = ids_of(tokenizer, "one two three four")
    choice = Choice(request_id="r", text=text_of(tokenizer, stop=["three"]), returns_token_ids=True)
    events = events_of_steps(choice, steps_of(ids, cuts))
    listed = [event.token_ids for event in events if isinstance(event, protocol.OutputTokens)]
    reported = [*itertools.chain(*listed)]
    text = "".join(event.text for event in events if isinstance(event, protocol.Delta))
    assert text == "one two "
    assert reported == ids[: len(reported)]
    assert b"three" in b"".join(map(tokenizer.bytes_of, reported))
    assert len(reported) == choice.num_output_tokens < len(ids)
    assert not any(
        isinstance(event, protocol.OutputTokens) for event in events_of(tokenizer, "one")
    )
