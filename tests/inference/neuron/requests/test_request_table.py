"""Every request ends exactly once, whichever end comes first, with its usage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.errors import engine_crashed
from inference.neuron.requests.request_table import AddressedEvent, RequestTable, SequenceOutput
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
)
from inference.protocol.events import TERMINAL_EVENTS, Cancelled, Failed, Finished
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case
from tests.inference.neuron.recording_engine import RecordingEngine
from tests.inference.neuron.requests.running_requests import (
    answer_of,
    cancelled_of,
    ends_of,
    output_of,
    running_request,
    step_of,
    submit_of,
)

STEPS = ["cancel", "begin", "started", "token", "finish", "engine_failed", "engine_cancelled"]
SEQUENCES = st.integers(0, 1)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([*STEPS, "crash", "refuse", "forget"]), SEQUENCES), max_size=14
    )
)
def test_at_most_one_terminal_event(tokenizer: Tokenizer, steps: list[tuple[str, int]]) -> None:
    engine = RecordingEngine()
    table = RequestTable()
    table.admit(submit_of("r"))
    events: list[AddressedEvent] = []
    has_begun = False
    for step, index in steps:
        match step:
            case "cancel":
                events += table.cancel("r")
            case "begin" if not has_begun:
                has_begun = table.begin("r", answer_of(tokenizer, num_choices=2), engine)
            case "started":
                table.started("r")
            case "crash":
                events += table.fail_engine(engine, engine_crashed("m"))
            case "refuse":
                events += table.fail("r", engine_crashed("m"))
            case "forget":
                table.forget(["r"])
            case _ if has_begun and step != "begin":
                events += table.apply([output_of(step, index)]).events
    events += table.fail_all(engine_crashed("m"))
    names = [step for step, _ in steps]
    terminal = [event for _, event in events if isinstance(event, TERMINAL_EVENTS)]
    assert len(terminal) == (0 if "forget" in names and not terminal else 1)
    assert not events or isinstance(events[-1].event, TERMINAL_EVENTS) or "forget" in names


TIMING = SequenceTiming(
    queue_ms=12.0, prefill_ms=100.0, decode_ms=500.0, prefill_tokens=50, memory_bytes=123_456_789
)
USED = SequenceUsage(num_prompt_tokens=7, num_output_tokens=1)


@each_case(
    ("end", "words"),
    [
        (
            SequenceStep(
                sequence_id="r/0",
                token_ids=[],
                finish_reason="stop",
                num_output_tokens=2,
                timing=TIMING,
            ),
            "finished prompt=7 completion=2 queue_ms=12 prefill_tokens=50 prefill_ms=100 "
            "decode_ms=500 memory_bytes=123456789",
        ),
        (
            SequenceFailed(sequence_id="r/0", code="engine_error", message="", used=USED),
            "engine_error prompt=7 completion=1",
        ),
        (SequenceCancelled(sequence_id="r/0", used=USED), "cancelled completion=1"),
    ],
)
def test_each_end_is_a_line_of_the_log(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, end: SequenceOutput, words: str
) -> None:
    caplog.set_level("INFO", logger="inference.neuron.requests.request_table")
    now_s = iter([100.0, 100.125, 100.25, 101.5])
    table = RequestTable(clock=lambda: next(now_s))
    running_request(table, answer_of(tokenizer))
    table.apply([output_of("token")])
    table.apply([end])
    (line,) = caplog.messages
    assert line.startswith("r model=m ")
    assert {*words.split(), "first_token_ms=250", "ms=1500"} <= set(line.split())


def test_a_request_that_no_engine_has_runs_once_and_is_cancelled_at_once(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    assert table.admit(submit_of("r"))
    assert not table.admit(submit_of("r"))
    assert [event for _, event in table.cancel("r")] == [Cancelled(request_id="r", usage=None)]
    assert not table.begin("r", answer_of(tokenizer), RecordingEngine())
    assert table.cancel("r") == []


@each_case("gateway_dies", [False, True])
def test_a_cancel_while_it_is_handed_over_follows_the_submit(
    tokenizer: Tokenizer, gateway_dies: bool
) -> None:
    table, engine = RequestTable(), RecordingEngine()
    table.admit(submit_of("r"))
    assert table.begin("r", answer_of(tokenizer), engine)
    if gateway_dies:
        table.forget_gateway("g")
    else:
        assert table.cancel("r") == []
    assert engine.cancelled == [], "a cancel that overtakes its submit would be lost"
    assert table.started("r"), "so it is sent afterwards"
    told = [type(event) for _, event in table.fail_engine(engine, engine_crashed("m"))]
    assert told == ([] if gateway_dies else [Failed])


@each_case("by_gateway", [False, True])
def test_forgotten_requests_are_freed_in_the_engine_and_nobody_is_told(
    tokenizer: Tokenizer, by_gateway: bool
) -> None:
    table = RequestTable()
    engine = running_request(table, answer_of(tokenizer))
    if by_gateway:
        assert (table.forget_gateway("g"), table.forget_gateway("g")) == (1, 0)
    else:
        table.forget(["r", "unknown"])
    assert engine.cancelled == ["r/0"]
    assert table.gateway_ids() == set()
    assert table.apply([output_of("token")]).events == []
    assert table.apply([cancelled_of(0, 7, output=2)]).events == []
    assert not table.submits_of(engine) and not table.is_live("r")


def test_a_dead_gateways_request_that_no_engine_has_ends_at_once(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    table.admit(submit_of("r"))
    assert table.forget_gateway("g") == 1
    assert not table.begin("r", answer_of(tokenizer), RecordingEngine()), "nobody waits for it"
    assert not table.is_live("r")


def test_an_engine_that_dies_while_a_request_fails_does_not_hide_why(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    engine = running_request(table, answer_of(tokenizer, num_choices=2))
    table.apply([output_of("engine_failed")])
    ((_, failed),) = table.fail_engine(engine, engine_crashed("m"))
    assert isinstance(failed, Failed) and failed.failure.code == "engine_error"


def test_an_answer_that_ends_before_its_cancel_arrives_is_finished(
    tokenizer: Tokenizer, table: RequestTable
) -> None:
    running_request(table, answer_of(tokenizer))
    table.apply([step_of(0, 70, cached=0)])
    table.cancel("r")
    assert isinstance(ends_of(table, output_of("finish")), Finished)
