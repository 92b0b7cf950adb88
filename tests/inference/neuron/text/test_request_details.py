"""What the log has of a request at debug level, and whose texts are in it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.neuron.requests.request_table import RequestTable
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.request_details import RequestTrace
from inference.protocol.engine import SequenceCancelled, SequenceStep
from inference.protocol.events import MAX_TRACE_BYTES, Cancelled, Finished, Traced
from inference.protocol.generation import TextInput, ToolDefinition
from inference.settings.neuron import ACCOUNTS
from inference.text.tool_calls.json_formats import HermesFormat
from tests.cases import each_case
from tests.inference.neuron.model_texts import a_chat, model_text, request_for_model
from tests.inference.neuron.recording_engine import Started
from tests.inference.text.family_templates import QWEN

SECRET = "sk-proj-0123456789abcdef"
CHAT = a_chat(f"The cat sat. {SECRET}", tools=[ToolDefinition(name="weather", path="tools[0]")])
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
BROKEN = '<tool_call>{"name": "weather", "arguments": {"city": Oslo'
THOUGHT = "<think>\nHm, the cat.\n</think>\nYes."


@pytest.fixture
def text(thinking_dir: Path) -> ModelText:
    found = model_text(thinking_dir, chat_template=QWEN, context_tokens=2000)
    return replace(found, tool_format=HermesFormat())


def started(
    text: ModelText, given: Any = CHAT, *, bodies: str | None = None, captures: bool = False
) -> RequestTable:
    """The table of a request of the account acme."""
    shown = None if bodies is None else ACCOUNTS.parse(bodies)
    request = request_for_model(given)
    return Started(text, request, bodies=shown, account="acme", captures=captures).table


def answer(table: RequestTable, text: ModelText, answered: str) -> list[Any]:
    """Returns the events of the last step."""
    for token_id in text.tokenizer.encode(answered, add_special_tokens=False):
        table.apply([SequenceStep(sequence_id="r/0", token_ids=[token_id])])
    end = SequenceStep(sequence_id="r/0", token_ids=[], finish_reason="stop")
    return [one.event for one in table.apply([end]).events]


def logged(caplog: Any, text: ModelText, answered: str, given: Any = CHAT, **more: Any) -> Any:
    caplog.clear()
    caplog.set_level(more.pop("level", logging.DEBUG), logger="inference.neuron")
    answer(started(text, given, **more), text, answered)
    name = "inference.neuron.text.request_details"
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_without_the_setting_no_text_is_in_the_log(caplog: Any, text: ModelText) -> None:
    assert logged(caplog, text, CALL, bodies="all", level=logging.INFO) == []
    for bodies in (None, "other"):
        prompt, call = logged(caplog, text, CALL, bodies=bodies)
        assert prompt.startswith("r prompt 0: tokens=")
        assert "tools=1 tool_format=hermes characters=" in prompt and "digest=" in prompt
        assert call.startswith("r/0 tool calls=1 weather(characters=15 digest=")
        assert f"block: characters={len(CALL)} digest=" in call
        everything = prompt + call
        assert not [word for word in ("cat", "Oslo", "sk-", "text=") if word in everything]
    _, broken = logged(caplog, text, BROKEN)
    assert broken.startswith("r/0 tool calls=0 text because its call cannot be read block: char")
    assert "secret_plan" not in str(logged(caplog, text, CALL.replace("weather", "secret_plan")))
    _, opens, closes = logged(caplog, text, THOUGHT)
    assert opens.startswith("r/0 reasoning opens") and closes.startswith("r/0 reasoning closes")
    assert "cat" not in opens + closes


@each_case("bodies", ["all", "acme", "other, acme"])
def test_the_rendered_prompt_and_a_call_of_an_account_that_is_named(
    caplog: Any, text: ModelText, bodies: str
) -> None:
    prompt, call = logged(caplog, text, CALL, bodies=bodies)
    rendered = prompt.partition("text=")[2]
    assert rendered.startswith("<|im_start|>") and "The cat sat. sk-***" in rendered
    assert SECRET not in rendered
    assert '{"city": "Oslo"}' in call and call.endswith(f"text={CALL}")
    (prompt,) = logged(caplog, text, "Yes.", TextInput(texts=["The cat"]), bodies=bodies)
    assert prompt.endswith("text=The cat") and "tool_format=- " in prompt


@each_case("word", ["", " , "])
def test_a_list_without_an_account_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        ACCOUNTS.parse(word)


def test_a_trace_has_the_prompt_the_raw_text_and_what_the_parser_decided(text: ModelText) -> None:
    *_, traced, finished = answer(started(text, captures=True), text, CALL)
    assert isinstance(traced, Traced) and isinstance(finished, Finished)
    prompt, _, rest = traced.text.partition("choice 0: ")
    assert "text=<|im_start|>" in prompt and "The cat sat. sk-***" in prompt
    assert SECRET not in traced.text
    assert rest.startswith("tool calls=1 weather(") and "Oslo" in rest
    assert "raw text: tokens=" in rest and rest.endswith(f"text={CALL}")
    untraced = answer(started(text), text, CALL)
    assert not [one for one in untraced if isinstance(one, Traced)]
    table = started(text, captures=True)
    assert table.apply([SequenceStep(sequence_id="r/0", token_ids=[5])]).ended_early == []
    table.cancel("r")
    output = SequenceCancelled(sequence_id="r/0")
    traced, cancelled = (one.event for one in table.apply([output]).events)
    assert isinstance(traced, Traced) and isinstance(cancelled, Cancelled)


def test_a_trace_is_bounded(text: ModelText) -> None:
    trace = RequestTrace("r", text.tokenizer)
    for _ in range(10):
        trace.output(0, list(range(3, 103)) * 1000, [])
        trace.write(0, "\u20ac" * 50_000)
    found = trace.event().text
    assert len(found.encode()) <= MAX_TRACE_BYTES
    assert found.endswith("[the rest is left out]")
