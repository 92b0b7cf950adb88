"""Every request ends exactly once, whoever is first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.neuron.answers import Answer, Choice
from inference.neuron.errors import engine_crashed
from inference.neuron.request_table import AddressedEvent, RequestTable
from inference.protocol.engine import SequenceCancelled, SequenceFailed, SequenceStep
from inference.protocol.events import TERMINAL_EVENTS, Cancelled
from inference.protocol.generation import GenerationRequest, Submit, TextInput
from inference.text.choice_text import ChoiceText
from inference.text.tokenizer import Tokenizer


class FakeEngine:
    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def cancel(self, sequence_id: str) -> None:
        self.cancelled.append(sequence_id)


@pytest.fixture(scope="module")
def tokenizer(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


def _submit(request_id: str) -> Submit:
    request = GenerationRequest(model="m", input=TextInput(texts=["x"]))
    return Submit(
        request_id=request_id, gateway_id="g", model="m", request=request, deadline_unix_s=0.0
    )


def _answer(tokenizer: Tokenizer) -> Answer:
    return Answer("r", [Choice(request_id="r", text=ChoiceText(tokenizer))], num_prompt_tokens=1)


STEPS = ["cancel", "begin", "started", "token", "finish", "engine_failed", "engine_cancelled"]


@given(steps=st.lists(st.sampled_from([*STEPS, "crash", "refuse", "forget"]), max_size=12))
def test_at_most_one_terminal_event(tokenizer: Tokenizer, steps: list[str]) -> None:
    table, engine = RequestTable(), FakeEngine()
    table.admit(_submit("r"))
    events: list[AddressedEvent] = []
    has_begun = False
    for step in steps:
        match step:
            case "cancel":
                events += table.cancel("r")
            case "begin":
                has_begun = table.begin("r", _answer(tokenizer), engine) or has_begun
            case "started":
                table.started("r")
            case "crash":
                events += table.fail_engine(engine, engine_crashed("m"))
            case "refuse":
                events += table.fail("r", engine_crashed("m"))
            case "forget":
                table.forget(["r"])
            case _ if has_begun:
                events += table.apply([_output(step)]).events
    events += table.fail_all(engine_crashed("m"))
    terminal = [event for _, event in events if isinstance(event, TERMINAL_EVENTS)]
    assert len(terminal) == (0 if "forget" in steps and not terminal else 1)
    assert not events or isinstance(events[-1].event, TERMINAL_EVENTS) or "forget" in steps


def _output(step: str) -> SequenceStep | SequenceFailed | SequenceCancelled:
    match step:
        case "token":
            return SequenceStep(sequence_id="r/0", token_ids=[70])
        case "finish":
            return SequenceStep(sequence_id="r/0", token_ids=[], finish_reason="stop")
        case "engine_failed":
            return SequenceFailed(sequence_id="r/0", code="engine_error", message="")
        case _:
            return SequenceCancelled(sequence_id="r/0")


def test_a_cancel_before_the_engine_has_it_ends_it(tokenizer: Tokenizer) -> None:
    table, engine = RequestTable(), FakeEngine()
    table.admit(_submit("r"))
    assert [type(event) for _, event in table.cancel("r")] == [Cancelled]
    assert not table.begin("r", _answer(tokenizer), engine)
    assert table.cancel("r") == []


def test_a_cancel_while_it_is_handed_over_follows_the_submit(tokenizer: Tokenizer) -> None:
    table, engine = RequestTable(), FakeEngine()
    table.admit(_submit("r"))
    assert table.begin("r", _answer(tokenizer), engine)
    assert table.cancel("r") == []
    assert engine.cancelled == [], "a cancel that overtakes its submit would be lost"
    assert table.started("r"), "so it is sent afterwards"


def test_a_frame_delivered_twice_runs_once() -> None:
    table = RequestTable()
    assert table.admit(_submit("r"))
    assert not table.admit(_submit("r"))


def test_forgotten_requests_are_freed_in_the_engine(tokenizer: Tokenizer) -> None:
    table, engine = RequestTable(), FakeEngine()
    table.admit(_submit("r"))
    table.begin("r", _answer(tokenizer), engine)
    table.forget(["r", "unknown"])
    assert engine.cancelled == ["r/0"]
    assert table.gateway_ids() == set()
