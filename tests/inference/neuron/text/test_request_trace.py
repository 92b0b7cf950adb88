"""What a neuron reports of a captured request before its end."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from inference.neuron.requests.live_request import AddressedEvent
from inference.neuron.requests.request_table import RequestTable
from inference.neuron.requests.starter import Starter
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.request_details import RequestTrace
from inference.protocol.engine import SequenceCancelled, SequenceStep
from inference.protocol.events import MAX_TRACE_BYTES, Cancelled, Event, Finished, Traced
from inference.protocol.generation import GenerationRequest, Submit
from inference.text.tool_calls.hermes import HermesFormat
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.text.test_request_details import CALL, CHAT, SECRET, Engine
from tests.inference.text.family_templates import QWEN


@pytest.fixture
def text(thinking_dir: Path) -> ModelText:
    found = model_text(thinking_dir, chat_template=QWEN, context_tokens=2000)
    return replace(found, tool_format=HermesFormat())


def started(text: ModelText, *, captures: bool) -> RequestTable:
    table = RequestTable()
    events: list[AddressedEvent] = []
    starter = Starter(
        table=table,
        publish=events.extend,
        take=lambda model: (Engine(), text),  # type: ignore[arg-type, return-value]
        read_images=lambda *_: {},
    )
    submit = Submit(
        request_id="r",
        gateway_id="g",
        model="m",
        request=GenerationRequest(model="m", input=CHAT),
        deadline_unix_s=time.time() + 600,
        captures=captures,
    )
    assert starter.admit(submit)
    starter.start(submit)
    return table


def answered(text: ModelText, *, captures: bool) -> list[Event]:
    """Returns the events of the last step."""
    table = started(text, captures=captures)
    for token_id in text.tokenizer.encode(CALL, add_special_tokens=False):
        table.apply([SequenceStep(sequence_id="r/0", token_ids=[token_id])])
    last = SequenceStep(sequence_id="r/0", token_ids=[], finish_reason="stop")
    return [one.event for one in table.apply([last]).events]


def test_the_prompt_the_raw_text_and_what_the_parser_decided(text: ModelText) -> None:
    *_, traced, finished = answered(text, captures=True)
    assert isinstance(traced, Traced) and isinstance(finished, Finished)
    prompt, _, rest = traced.text.partition("choice 0: ")
    assert "text=<|im_start|>" in prompt and "The cat sat. sk-***" in prompt
    assert SECRET not in traced.text
    assert rest.startswith("tool calls=1 weather(") and "Oslo" in rest
    assert "raw text: tokens=" in rest and rest.endswith(f"text={CALL}")


def test_of_no_other_request(text: ModelText) -> None:
    assert not [one for one in answered(text, captures=False) if isinstance(one, Traced)]


def test_a_cancelled_request_reports_it_too(text: ModelText) -> None:
    table = started(text, captures=True)
    assert table.apply([SequenceStep(sequence_id="r/0", token_ids=[5])]).ended_early == []
    table.cancel("r")
    output = SequenceCancelled(sequence_id="r/0")
    traced, cancelled = (one.event for one in table.apply([output]).events)
    assert isinstance(traced, Traced) and isinstance(cancelled, Cancelled)


def test_it_is_bounded(text: ModelText) -> None:
    trace = RequestTrace("r", text.tokenizer)
    choice = trace.details.choice(0, ())
    for _ in range(10):
        choice.tokens(list(range(3, 103)) * 1000)
        trace.details.write(0, "\u20ac" * 50_000)
    found = trace.event().text
    assert len(found.encode()) <= MAX_TRACE_BYTES
    assert found.endswith("[the rest is left out]")
