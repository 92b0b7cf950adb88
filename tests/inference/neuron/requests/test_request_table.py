"""Every request ends exactly once, whichever end comes first, with its usage and its times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.errors import of_model
from inference.neuron.requests.request_table import AddressedEvent, RequestTable, SequenceOutput
from inference.neuron.text.answers import EmbeddingAnswer, TextAnswer
from inference.neuron.text.choice_events import Choice
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
)
from inference.protocol.events import (
    TERMINAL_EVENTS,
    Cancelled,
    Failed,
    Finished,
    StageTimes,
    Usage,
)
from inference.protocol.generation import EmbeddingRequest, Submit, TextInput
from inference.text.choice_text import ChoiceText
from inference.text.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.neuron.model_texts import RecordingEngine, submit_of

CRASHED = of_model("engine_crashed", "m")
TRACED = submit_of("r", traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
EMBEDDING = submit_of(
    "r",
    EmbeddingRequest(model="m", input=TextInput(texts=["x"])),
    traceparent=TRACED.traceparent,
)


def answer_of(tokenizer: Tokenizer, num_choices: int = 1, num_prompts: int = 1) -> TextAnswer:
    choices = [
        Choice(request_id="r", index=index, text=ChoiceText(tokenizer))
        for index in range(num_choices * num_prompts)
    ]
    return TextAnswer("r", choices, prompt_lengths=[7] * num_prompts, n=num_choices)


def running_request(
    table: RequestTable, answer: TextAnswer | EmbeddingAnswer, submit: Submit | None = None
) -> RecordingEngine:
    engine = RecordingEngine()
    table.admit(submit or submit_of("r"))
    table.begin("r", answer, engine)
    table.started("r")
    return engine


def step(index: int, *token_ids: int, **fields: Any) -> SequenceStep:
    return SequenceStep(sequence_id=f"r/{index}", token_ids=list(token_ids), **fields)


def failed(code: str = "engine_error", index: int = 0, message: str = "", **used: Any) -> Any:
    usage = SequenceUsage(**used)
    return SequenceFailed(sequence_id=f"r/{index}", code=code, message=message, used=usage)


def cancelled(index: int = 0, **used: Any) -> SequenceCancelled:
    return SequenceCancelled(sequence_id=f"r/{index}", used=SequenceUsage(**used))


STEPS = ["cancel", "begin", "started", "crash", "refuse", "forget"]
OUTPUTS = {
    "token": lambda index: step(index, 70),
    "finish": lambda index: step(index, finish_reason="stop"),
    "engine_failed": lambda index: failed(index=index),
    "engine_cancelled": lambda index: cancelled(index),
}


@given(
    steps=st.lists(st.tuples(st.sampled_from([*STEPS, *OUTPUTS]), st.integers(0, 1)), max_size=14)
)
def test_at_most_one_terminal_event(tokenizer: Tokenizer, steps: list[tuple[str, int]]) -> None:
    engine, table = RecordingEngine(), RequestTable()
    table.admit(submit_of("r"))
    events: list[AddressedEvent] = []
    has_begun = False
    for name, index in steps:
        match name:
            case "cancel":
                events += table.cancel("r")
            case "begin" if not has_begun:
                has_begun = table.begin("r", answer_of(tokenizer, num_choices=2), engine)
            case "started":
                table.started("r")
            case "crash":
                events += table.fail_engine(engine, CRASHED)
            case "refuse":
                events += table.fail("r", CRASHED)
            case "forget":
                table.forget(["r"])
            case _ if has_begun and name != "begin":
                events += table.apply([OUTPUTS[name](index)]).events
    events += table.fail_all(CRASHED)
    is_forgotten = ("forget", 0) in steps or ("forget", 1) in steps
    terminal = [event for _, event in events if isinstance(event, TERMINAL_EVENTS)]
    assert not [event for _, event in events if isinstance(event, StageTimes)], "it is not traced"
    assert len(terminal) == (0 if is_forgotten and not terminal else 1)
    assert not events or isinstance(events[-1].event, TERMINAL_EVENTS) or is_forgotten


def test_a_request_that_no_engine_has_runs_once_and_ends_at_once(tokenizer: Tokenizer) -> None:
    engine = RecordingEngine()
    for end, told in [
        (lambda table: table.cancel("r"), [("g", Cancelled(request_id="r", usage=None))]),
        (lambda table: table.fail("r", CRASHED), [("g", Failed(request_id="r", failure=CRASHED))]),
        (lambda table: table.forget_gateway("g"), 1),
    ]:
        table = RequestTable()
        assert table.admit(submit_of("r")) and not table.admit(submit_of("r"))
        assert end(table) == told
        assert not table.begin("r", answer_of(tokenizer), engine), "nobody waits for it"
        assert table.cancel("r") == [] and not table.is_live("r")


@each_case("gateway_dies", [False, True])
def test_a_cancel_follows_its_submit(tokenizer: Tokenizer, gateway_dies: bool) -> None:
    table, engine = RequestTable(), RecordingEngine()
    table.admit(submit_of("r"))
    assert table.begin("r", answer_of(tokenizer), engine)
    if gateway_dies:
        table.forget_gateway("g")
    else:
        assert table.cancel("r") == []
    assert engine.cancelled == [], "a cancel that overtakes its submit would be lost"
    assert table.started("r"), "so it is sent afterwards"
    told = [type(event) for _, event in table.fail_engine(engine, CRASHED)]
    assert told == ([] if gateway_dies else [Failed])


@each_case("by_gateway", [False, True])
def test_forgotten_requests_are_freed_in_silence(tokenizer: Tokenizer, by_gateway: bool) -> None:
    table = RequestTable()
    engine = running_request(table, answer_of(tokenizer))
    if by_gateway:
        assert (table.forget_gateway("g"), table.forget_gateway("g")) == (1, 0)
    else:
        table.forget(["r", "unknown"])
    assert engine.cancelled == ["r/0"]
    assert table.gateway_ids() == set()
    assert table.apply([step(0, 70)]).events == []
    assert table.apply([cancelled(num_prompt_tokens=7, num_output_tokens=2)]).events == []
    assert not table.submits_of(engine) and not table.is_live("r")


def used(prompt: int, completion: int, cached: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


TWO = {"num_prompts": 2}
FIRST_OF_TWO = step(0, 70, 70, num_cached_tokens=3)
NO_ROOM = failed("out_of_memory", 1, "no room", num_prompt_tokens=4)
LAST = cancelled(1, num_prompt_tokens=7, num_output_tokens=2)
CANCELLED = cancelled(0, num_prompt_tokens=7, num_output_tokens=3)


@each_case(
    ("made", "steps", "end", "usage"),
    [
        # A cancelled one costs what was computed of it.
        ({}, ["cancel", cancelled(num_prompt_tokens=5, num_cached_tokens=4)], None, used(5, 0, 4)),
        ({}, ["cancel", cancelled(num_prompt_tokens=0)], None, None),
        (None, ["cancel", cancelled(num_prompt_tokens=40)], None, used(40, 0)),
        # All its choices count: the other may have gained tokens.
        (
            {"num_choices": 2},
            [FIRST_OF_TWO, step(1, 70, num_cached_tokens=6), "cancel", CANCELLED, LAST],
            *(None, used(7, 5, 3)),
        ),
        # It has ended before its cancel arrives.
        ({}, [step(0, 70), "cancel", step(0, finish_reason="stop")], "", used(7, 1)),
        # A failed choice ends the other one, whose tokens count and are not sent.
        (TWO, [step(0, 70), NO_ROOM, step(0, 70, 71), CANCELLED], "no room", used(7 + 4, 3)),
        # A crash costs what the neuron knows of, and hides no earlier failure.
        (TWO, [FIRST_OF_TWO, "crash"], CRASHED.message, used(7, 2, 3)),
        (TWO, [FIRST_OF_TWO, NO_ROOM, "crash"], "no room", used(7 + 4, 2, 3)),
    ],
)
def test_it_ends_once_with_the_usage_of_all_its_sequences(
    tokenizer: Tokenizer, made: Any, steps: list[Any], end: str | None, usage: Any
) -> None:
    vectors, table, is_over = EmbeddingAnswer("r", num_prompt_tokens=90), RequestTable(), False
    engine = running_request(table, vectors if made is None else answer_of(tokenizer, **made))
    for index, one in enumerate(steps):
        match one:
            case "cancel":
                found, is_over = table.cancel("r"), True
                assert len(engine.cancelled) == (made or {}).get("num_choices", 1)
            case "crash":
                found = table.fail_engine(engine, CRASHED)
            case _:
                applied = table.apply([one])
                found = applied.events
                is_over |= one is NO_ROOM
                assert one is not NO_ROOM or applied.ended_early == ["r/0"]
        if index < len(steps) - 1:
            assert not (is_over and found), "its client hears nothing but its end"
    *_, (_, event) = found
    assert event.usage == usage
    if isinstance(event, Failed):
        assert event.failure.message == end
    else:
        assert isinstance(event, Cancelled if end is None else Finished)


def test_an_end_is_a_log_line(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="inference.neuron.requests.request_table")
    now_s = iter([100.0, 100.125, 100.25, 101.5])
    table = RequestTable(clock=lambda: next(now_s))
    running_request(table, answer_of(tokenizer))
    table.apply([step(0, 70)])
    times = {"queue_ms": 12.0, "prefill_ms": 100.0, "decode_ms": 500.0}
    timing = SequenceTiming(**times, prefill_tokens=50, memory_bytes=123_456_789)
    table.apply([step(0, finish_reason="stop", num_output_tokens=2, timing=timing)])
    (line,) = caplog.messages
    assert line.startswith("r model=m finished prompt=7 cached=0 completion=2 first_token_ms=250 ")
    assert "ms=1500 queue_ms=12 prefill_ms=100 prefill_tokens=50 " in line
    assert " decode_ms=500 " in line and "memory_bytes=123456789" in line


FIRST, LATER = step(0, 70, prefill_ms=2000.0), step(0, 70)


@each_case(
    ("submit", "outputs", "expected"),
    [
        # Its engine has it after 1 s; each output comes 3 s after the one before, the end 3 s on.
        (TRACED, [FIRST, LATER], (1000.0, 1000.0, 2000.0, 6000.0)),
        (TRACED, [FIRST, step(0, finish_reason="stop")], (1000.0, 1000.0, 2000.0, 3000.0)),
        (TRACED, [FIRST, failed(num_output_tokens=1)], (1000.0, 1000.0, 2000.0, 3000.0)),
        (TRACED, [failed(num_prompt_tokens=4, prefill_ms=1500.0)], (1000.0, 1500.0, 1500.0, None)),
        (TRACED, [cancelled()], (1000.0, 3000.0, None, None)),
        (TRACED, [], (1000.0, None, None, None)),
        (EMBEDDING, [SequencesEmbedded(sequence_id="r/0", vectors=[])], (1000.0, None, None, None)),
        (EMBEDDING, [cancelled()], (1000.0, None, None, None)),
    ],
)
def test_how_long_a_traced_request_spent_in_each_stage(
    tokenizer: Tokenizer, submit: Submit, outputs: list[SequenceOutput], expected: tuple[Any, ...]
) -> None:
    now_s = 100.0
    table = RequestTable(clock=lambda: now_s)
    table.admit(submit)
    now_s += 1.0
    is_text = submit is TRACED
    answer = answer_of(tokenizer) if is_text else EmbeddingAnswer("r", num_prompt_tokens=3)
    table.begin("r", answer, RecordingEngine())
    events = []
    for output in outputs:
        now_s += 3.0
        events += table.apply([output]).events
    if table.is_live("r"):
        now_s += 3.0
        events += table.fail("r", CRASHED)
    *before, times, end = (one.event for one in events)
    assert isinstance(times, StageTimes) and isinstance(end, TERMINAL_EVENTS)
    assert not [one for one in before if isinstance(one, StageTimes)]
    assert (times.prepare_ms, times.queue_ms, times.prefill_ms, times.decode_ms) == expected
    assert times.total_ms == 1000 * (now_s - 100.0)
    table.admit(TRACED)  # it is never prepared
    now_s += 2.0
    times, _ = (one.event for one in table.fail("r", CRASHED))
    assert times == StageTimes(request_id="r", total_ms=2000.0, prepare_ms=2000.0)
