"""Steps to events: any split of the tokens tells the same, and each choice ends once."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.answers import Answer, Choice
from inference.neuron.choice_events import call_id
from inference.neuron.echo import Echo
from inference.neuron.prompt_scores import PromptScores
from inference.protocol.engine import SequenceStep, SequenceTiming
from inference.protocol.events import (
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    OutputTokens,
    PromptScored,
    ReasoningDelta,
    TextLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from inference.protocol.sampling import TokenLogprob
from inference.text.choice_text import ChoiceText
from inference.text.phrases import SPOKEN
from inference.text.reasoning import find_markers
from inference.text.tokenizer import Tokenizer
from tests.inference.text.marked_calls import MarkedCalls


@pytest.fixture(scope="module")
def tokenizer(thinking_dir: Path) -> Tokenizer:
    return Tokenizer.load(thinking_dir)


def _text(tokenizer: Tokenizer, **kwargs: object) -> ChoiceText:
    form = MarkedCalls()
    return ChoiceText(
        tokenizer,
        markers=find_markers(tokenizer, None),
        tool_calls=form.parser([]),
        shown_token_ids=form.shown_token_ids(tokenizer),
        **kwargs,  # type: ignore[arg-type]
    )


def _steps(ids: list[int], cuts: list[int], reason: str | None = "stop") -> list[SequenceStep]:
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


def _tell(answer: Answer, steps: list[SequenceStep], index: int = 0) -> list[Event]:
    events: list[Event] = []
    for step in steps:
        if not answer.has_finished(index):
            events += answer.feed(index, step)
    return events


def _answer(*choices: Choice, n: int = 1) -> Answer:
    return Answer("r", choices, prompt_lengths=[5] * (len(choices) // n), n=n)


class Folded:
    """What a body encoder makes of the events."""

    def __init__(self, events: list[Event]) -> None:
        self.told: list[list[str]] = []
        self.logprobs: list[TextLogprob] = []
        self.ends: list[Event] = []
        self.num_tokens = 0
        """Of all events; which of them tells a token depends on the split."""
        for event in events:
            self.num_tokens += getattr(event, "num_tokens", 0)
            match event:
                case Delta(text=text, logprobs=logprobs):
                    self.logprobs += logprobs or []
                    self._add("text", text)
                case ReasoningDelta(text=text, opens=opens, closes=closes):
                    self._add("thought", f"{'«' if opens else ''}{text}{'»' if closes else ''}")
                case ToolCallStarted(call_id=identity, name=name):
                    self.told.append(["call", f"{identity} {name}"])
                case ToolCallDelta(arguments=arguments):
                    self._add("arguments", arguments)
                case ChoiceFinished():
                    self.ends.append(msgspec.structs.replace(event, num_tokens=0))
                case _:
                    self.ends.append(event)

    def _add(self, kind: str, text: str) -> None:
        if self.told and self.told[-1][0] == kind:
            self.told[-1][1] += text
        elif text:
            self.told.append([kind, text])


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


@given(
    text=st.lists(st.sampled_from(WORDS), max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    starts_thinking=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
)
def test_any_split_tells_the_same(
    tokenizer: Tokenizer, text: str, cuts: list[int], starts_thinking: bool, reason: str
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    folded = []
    for some_cuts in ([], cuts, list(range(len(ids)))):
        choice_text = _text(tokenizer, stop=["END"], starts_thinking=starts_thinking)
        answer = _answer(Choice(request_id="r", text=choice_text))
        folded.append(Folded(_tell(answer, _steps(ids, some_cuts, reason))))
    whole, split, single = folded
    assert whole.told == split.told == single.told
    assert whole.ends == split.ends == single.ends
    assert whole.logprobs == split.logprobs == single.logprobs
    finished = whole.ends[-1]
    assert [type(end) for end in whole.ends] == [ChoiceFinished, Finished]
    assert isinstance(finished, Finished)
    for fold in folded:
        assert fold.num_tokens == finished.usage.completion_tokens


@given(text=st.lists(st.sampled_from(WORDS), max_size=10).map("".join))
def test_reasoning_deltas_tell_every_thought_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode("<think>" + text.replace("</think>", ""), add_special_tokens=False)
    answer = _answer(Choice(request_id="r", text=_text(tokenizer)))
    events = _tell(answer, _steps([*ids, *_ids(tokenizer, "</think>")], [3, 5]))
    told = sum(event.num_tokens for event in events if isinstance(event, ReasoningDelta))
    assert told == len(ids) + 1


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _events(
    tokenizer: Tokenizer, text: str, reason: str | None = "stop", **kwargs: object
) -> list[Event]:
    choice = Choice(request_id="r", text=_text(tokenizer), **kwargs)  # type: ignore[arg-type]
    return _tell(_answer(choice), _steps(_ids(tokenizer, text), [], reason))


def _reason(events: list[Event]) -> str:
    (finished,) = (event for event in events if isinstance(event, ChoiceFinished))
    return finished.reason


def test_why_a_choice_ended(tokenizer: Tokenizer) -> None:
    call = "<call>f {}</call>"
    assert _reason(_events(tokenizer, "yes")) == "stop"
    assert _reason(_events(tokenizer, call)) == "tool_calls"
    assert _reason(_events(tokenizer, "<call>f {}")) == "stop"
    assert _reason(_events(tokenizer, call, "length")) == "length"
    assert _reason(_events(tokenizer, call, "length", at_limit="context")) == "context"
    assert _reason(_events(tokenizer, "yes", at_limit="context")) == "stop"


def test_calls_are_named_by_request_choice_and_place(tokenizer: Tokenizer) -> None:
    events = _events(tokenizer, "<call>f {}</call><call>g</call>", index=0)
    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(call.name, call.call_index) for call in started] == [("f", 0), ("g", 1)]
    ids = {call.call_id for call in started} | {call_id("r", 1, 0), call_id("s", 0, 0)}
    assert len(ids) == 4
    assert started[0].call_id == call_id("r", 0, 0)
    assert len(started[0].call_id) == len("call_") + 24
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(delta.call_index, delta.arguments) for delta in deltas] == [(0, "{}"), (1, "{}")]


def test_thoughts_carry_no_logprobs(tokenizer: Tokenizer) -> None:
    told = Folded(_events(tokenizer, "<think>so</think>yes")).logprobs
    assert "".join(entry.token for entry in told) == "yes"


def test_usage_counts_thoughts_and_the_stop_token(tokenizer: Tokenizer) -> None:
    finished = _events(tokenizer, "<think>so</think>yes")[-1]
    assert isinstance(finished, Finished)
    num_thought, num_answer = len(_ids(tokenizer, "so")), len(_ids(tokenizer, "yes"))
    assert finished.usage.reasoning_tokens == num_thought
    assert finished.usage.completion_tokens == 2 + num_thought + num_answer + 1
    assert finished.usage.cached_tokens == 3


def test_a_stop_string_ends_the_count_whatever_came_with_it(tokenizer: Tokenizer) -> None:
    text = ChoiceText(tokenizer, stop=["E"])
    answer = _answer(Choice(request_id="r", text=text))
    ids = [*_ids(tokenizer, "yes"), *_ids(tokenizer, "E"), *_ids(tokenizer, "more")]
    events = _tell(answer, _steps(ids, [], None))
    assert [type(event) for event in events] == [Delta, ChoiceFinished, Finished]
    assert answer.has_finished(0)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.completion_tokens == len(_ids(tokenizer, "yes")) + 1


def test_drafts_are_counted_as_far_as_they_are_in_the_answer(tokenizer: Tokenizer) -> None:
    ids = [*_ids(tokenizer, "yes"), *_ids(tokenizer, "E"), *_ids(tokenizer, "more")]
    choice = Choice(request_id="r", text=ChoiceText(tokenizer, stop=["E"]))
    steps = [
        SequenceStep(
            sequence_id="r/0", token_ids=ids[:1], num_cached_tokens=0, num_drafted_tokens=3
        ),
        SequenceStep(
            sequence_id="r/0",
            token_ids=ids[1:],
            num_drafted_tokens=len(ids) + 1,
            num_accepted_drafts=len(ids) - 1,
        ),
    ]
    finished = _tell(_answer(choice), steps)[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.accepted_drafts == finished.usage.completion_tokens - 1
    assert finished.usage.rejected_drafts == 3 + 2


def test_an_answer_ends_with_its_last_choice(tokenizer: Tokenizer) -> None:
    choices = [Choice(request_id="r", text=_text(tokenizer), index=i) for i in range(4)]
    answer = _answer(*choices, n=2)
    steps = _steps(_ids(tokenizer, "yes"), [])
    for index in (2, 0, 3):
        assert not isinstance(_tell(answer, steps, index)[-1], Finished)
    finished = _tell(answer, steps, 1)[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.cached_tokens == 6, "the two prompts, each counted once"


def test_an_echo_comes_first(tokenizer: Tokenizer) -> None:
    choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=Echo("The "))
    events = _tell(_answer(choice), _steps(_ids(tokenizer, "yes"), [0]))
    assert Folded(events).told == [["text", "The yes"]]


def test_a_prompts_logprobs_come_with_its_echo(tokenizer: Tokenizer) -> None:
    prompt, answer = _ids(tokenizer, "The "), _ids(tokenizer, "yes")
    first = TextLogprob(token="T", token_bytes=b"T", logprob=None)
    choice = Choice(
        request_id="r", text=ChoiceText(tokenizer), echo=Echo("The ", [first], num_top=0)
    )
    scored = [TokenLogprob(token_id, -0.5) for token_id in prompt[1:]]
    of_prompt = [
        SequenceStep(sequence_id="r/0", token_ids=[], prompt_logprobs=part)
        for part in (scored[:1], scored[1:])
        if part
    ]
    of_answer = [TokenLogprob(token_id, -0.25) for token_id in answer]
    end = SequenceStep(
        sequence_id="r/0",
        token_ids=answer,
        logprobs=of_answer,
        finish_reason="length",
        num_output_tokens=len(answer),
    )
    events = _tell(_answer(choice), [*of_prompt, end])
    (delta,) = (event for event in events if isinstance(event, Delta))
    assert delta.text == "The yes" and delta.num_tokens == len(answer)
    assert [token.logprob for token in delta.logprobs or []] == [
        None,
        *[-0.5] * len(scored),
        *[-0.25] * len(answer),
    ]


def test_a_prompts_scores_are_told_as_they_come(tokenizer: Tokenizer) -> None:
    """Each with as many candidates as were asked for, also where its echo shows another number."""
    first, second = _ids(tokenizer, "no")
    best = [(first, -0.25), (second, -1.5)]
    echo = Echo("The ", num_top=1)
    choice = Choice(
        request_id="r", text=ChoiceText(tokenizer), echo=echo, scores=PromptScores("r", 3, 2)
    )
    scored = SequenceStep(
        sequence_id="r/0",
        token_ids=[],
        prompt_logprobs=[TokenLogprob(second, -1.5, best, 2)],
    )
    (event,) = _answer(choice).feed(0, scored)
    assert isinstance(event, PromptScored) and event.prompt_index == 3
    told = [[(one.text, one.logprob, one.rank) for one in token] for token in event.tokens]
    assert told == [[("o", -1.5, 2), ("n", -0.25, 1), ("o", -1.5, 2)]]
    assert [len(token.top) for token in echo.logprobs] == [1]


@pytest.mark.parametrize("echo", [Echo("The "), None])
def test_a_prompt_alone_tells_and_counts_no_token(tokenizer: Tokenizer, echo: Echo | None) -> None:
    choice = Choice(request_id="r", text=ChoiceText(tokenizer), echo=echo, is_empty=True)
    sampled = _ids(tokenizer, "yes")[:1]
    step = SequenceStep(
        sequence_id="r/0", token_ids=sampled, finish_reason="length", num_output_tokens=1
    )
    events = _tell(_answer(choice), [step])
    assert Folded(events).told == ([] if echo is None else [["text", "The "]])
    (finished,) = (event for event in events if isinstance(event, Finished))
    assert finished.usage.completion_tokens == 0


@given(cuts=st.lists(st.integers(0, 40), max_size=4))
def test_token_ids_are_told_up_to_the_stop(tokenizer: Tokenizer, cuts: list[int]) -> None:
    ids = _ids(tokenizer, "one two three four")
    choice = Choice(request_id="r", text=_text(tokenizer, stop=["three"]), returns_token_ids=True)
    events = _tell(_answer(choice), _steps(ids, cuts))
    told = [one for event in events if isinstance(event, OutputTokens) for one in event.token_ids]
    text = "".join(event.text for event in events if isinstance(event, Delta))
    assert text == "one two "
    assert told == ids[: len(told)]
    assert b"three" in b"".join(map(tokenizer.bytes_of, told))
    assert len(told) == choice.num_output_tokens < len(ids)


def test_token_ids_are_told_only_where_asked_for(tokenizer: Tokenizer) -> None:
    events = _events(tokenizer, "one")
    assert not any(isinstance(event, OutputTokens) for event in events)


@given(cuts=st.lists(st.integers(0, 40), max_size=4))
def test_tokens_are_answer_once_it_is_known_that_they_are(
    tokenizer: Tokenizer, cuts: list[int]
) -> None:
    """Phrases leave that open; log probabilities wait for it."""
    spoken = f"{SPOKEN.opens[0]} So. {SPOKEN.closes[0]} Here it is"
    for text, answer in ((spoken, "Here it is"), ("Here is a list", "Here is a list")):
        choice = Choice(request_id="r", text=ChoiceText(tokenizer, phrases=SPOKEN))
        folded = Folded(_tell(_answer(choice), _steps(_ids(tokenizer, text), cuts)))
        assert folded.told[-1] == ["text", answer]
        assert "".join(entry.token for entry in folded.logprobs).strip() == answer
        assert folded.num_tokens == choice.num_output_tokens


class TestTiming:
    """The engine's own times, of a request's only sequence."""

    TIMING = SequenceTiming(prefill_ms=5.0, decode_ms=20.0, prefill_tokens=2)

    def _end(self, answer: Answer, ids: list[int], index: int = 0) -> Event:
        *steps, last = _steps(ids, [])
        timed = msgspec.structs.replace(last, timing=self.TIMING)
        return _tell(answer, [*steps, timed], index)[-1]

    def test_goes_up_with_the_end(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("Paris is nice", add_special_tokens=False)
        answer = _answer(Choice(request_id="r", text=_text(tokenizer)))
        end = self._end(answer, ids)
        assert isinstance(end, Finished)
        assert end.timing == self.TIMING

    def test_is_not_told_of_several_choices_or_of_what_a_stop_string_ended(
        self, tokenizer: Tokenizer
    ) -> None:
        ids = tokenizer.encode("Paris is nice", add_special_tokens=False)
        two = [Choice(request_id="r", text=_text(tokenizer), index=index) for index in (0, 1)]
        answer = _answer(*two, n=2)
        self._end(answer, ids)
        end = self._end(answer, ids, index=1)
        assert isinstance(end, Finished) and end.timing is None
        stopped = _answer(Choice(request_id="r", text=_text(tokenizer, stop=["is"])))
        end = self._end(stopped, ids)
        assert isinstance(end, Finished) and end.timing is None
