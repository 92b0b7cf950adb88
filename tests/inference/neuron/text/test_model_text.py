"""What a model's files and its chat template say of it; what a log and a trace have of its
requests."""

from __future__ import annotations

import logging
import shutil
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
from inference.text.phrases import SPOKEN
from inference.text.tool_calls import FORMATS
from tests.cases import each_case
from tests.inference.neuron.model_texts import (
    OPENS,
    THINKS,
    Started,
    a_chat,
    model_text,
    prepared,
    request_for_model,
)
from tests.inference.text.family_templates import GEMMA, LLAMA, MISTRAL, QWEN

BEGINS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
TURNS = BEGINS + "<|im_end|>\n{% endfor %}"


@each_case(
    ("template", "declared", "ends"),
    [
        (TURNS, [0], [0, 2]),
        (TURNS, [], [2]),
        (TURNS, [2], [2]),
        (BEGINS + "\n{% endfor %}", [0], [0, 1]),
        (BEGINS + "<|im_start|><|endoftext|>{% endfor %}", [0], [0]),
        (BEGINS + " ### {% endfor %}", [0], [0]),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", [0], [0]),
        ("{{ raise_exception('no') }}", [0], [0]),
        ("{{ messages[-1].content }}", [0], [0]),
    ],
)
def test_the_end_of_a_turn_that_no_file_declares(
    byte_level_dir: Path, template: str, declared: list[int], ends: list[int]
) -> None:
    text = model_text(byte_level_dir, chat_template=template, eos_token_ids=declared)
    assert text.report.eos_token_ids == ends
    assert any("behind an answer" in one for one in text.report.warnings) == (ends != declared)
    if template == TURNS:
        assert prepared(text, a_chat()).params.stop_token_ids == ends


TEXTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% for m in messages %}x{% endfor %}"
REFUSES = "{% for m in messages %}{% if TEST %}{{ raise_exception('no') }}{% endif %}{% endfor %}"


@each_case(
    ("template", "problem"),
    [
        *[(family, None) for family in (GEMMA, LLAMA, MISTRAL, QWEN, TEXTS)],
        ("{% if %}", "the model's chat template failed: Expected an expression"),
        (REFUSES.replace("TEST", "loop.first"), "the model's chat template failed: no"),
        (
            REFUSES.replace("TEST", "m.role == 'assistant'"),
            "the model's chat template fails at turn 2 of 3 (assistant after user): no",
        ),
        (NO_SYSTEM, "the model's chat template rewrites or drops system turns"),
        (
            "{{ tools }}{{ tool_calls }}" + REFUSES.replace("TEST", "m.role == 'tool'") + TEXTS,
            "with tools the model's chat template fails at turn 2 of 5 (assistant after user): no",
        ),
        (
            TEXTS + "{% if tools %}x{% endif %}",
            "with tools this model's chat template has no place for tool calls",
        ),
    ],
    ids=lambda value: str(value)[-80:],
)
def test_what_is_wrong_with_a_template_stands_in_the_report(
    byte_level_dir: Path, tmp_path: Path, template: str, problem: str | None
) -> None:
    found = model_text(byte_level_dir, chat_template=template).report.template_problem
    assert found == problem or str(found).startswith(str(problem))
    shutil.copy(byte_level_dir / "tokenizer.json", tmp_path)
    found = model_text(tmp_path).report.template_problem
    assert found == "the model has no chat template; conversations are written as ChatML"


def test_capabilities_and_fingerprints(byte_level_dir: Path, thinking_dir: Path) -> None:
    always = {"chat", "completions", "logprobs", "structured_output"}
    takes_tools = "{{ tools }}<tool_call>"
    thoughts = " ".join((SPOKEN.opens[0], "{% if thinking %}", SPOKEN.closes[0], "{% endif %}"))
    for directory, template, more in (
        (byte_level_dir, None, set()),
        (byte_level_dir, takes_tools, {"tool_call"}),
        (byte_level_dir, OPENS, set()),
        (byte_level_dir, thoughts, {"reasoning"}),
        (thinking_dir, THINKS, set()),
        (thinking_dir, OPENS, {"reasoning"}),
        (thinking_dir, OPENS + takes_tools, {"reasoning", "tool_call"}),
    ):
        found = model_text(directory, chat_template=template).capabilities
        assert set(found) == always | more
    assert model_text(byte_level_dir, kind="embedding").capabilities == ["embeddings"]
    text = model_text(byte_level_dir)
    assert text.fingerprint == model_text(byte_level_dir).fingerprint
    assert text.fingerprint != model_text(byte_level_dir, dtype="bfloat16").fingerprint
    assert text.fingerprint != model_text(byte_level_dir, chat_template="x").fingerprint


SECRET = "sk-proj-0123456789abcdef"
CHAT = a_chat(f"The cat sat. {SECRET}", tools=[ToolDefinition(name="weather", path="tools[0]")])
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
BROKEN = '<tool_call>{"name": "weather", "arguments": {"city": Oslo'
THOUGHT = "<think>\nHm, the cat.\n</think>\nYes."


@pytest.fixture
def text(thinking_dir: Path) -> ModelText:
    found = model_text(thinking_dir, chat_template=QWEN, context_tokens=2000)
    return replace(found, tool_format=FORMATS["hermes"])


def started(
    text: ModelText, given: Any = CHAT, *, bodies: str | None = None, captures: bool = False
) -> RequestTable:
    """The table of a request of the account acme."""
    shown = None if bodies is None else ACCOUNTS.parse(bodies)
    request = request_for_model(given)
    return Started(text, request, bodies=shown, account="acme", captures=captures).table


def answer(table: RequestTable, text: ModelText, answered: str) -> list[Any]:
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


def test_texts_are_logged_of_named_accounts_alone(caplog: Any, text: ModelText) -> None:
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
    for bodies in ("all", "acme", "other, acme"):
        prompt, call = logged(caplog, text, CALL, bodies=bodies)
        rendered = prompt.partition("text=")[2]
        assert rendered.startswith("<|im_start|>") and "The cat sat. sk-***" in rendered
        assert SECRET not in rendered
        assert '{"city": "Oslo"}' in call and call.endswith(f"text={CALL}")
        (prompt,) = logged(caplog, text, "Yes.", TextInput(texts=["The cat"]), bodies=bodies)
        assert prompt.endswith("text=The cat") and "tool_format=- " in prompt


def test_a_trace_has_the_prompt_the_text_and_the_parsers_decisions(text: ModelText) -> None:
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
    trace = RequestTrace("r", text.tokenizer)
    for _ in range(10):
        trace.output(0, list(range(3, 103)) * 1000, [])
        trace.write(0, "\u20ac" * 50_000)
    found = trace.event().text
    assert len(found.encode()) <= MAX_TRACE_BYTES
    assert found.endswith("[the rest is left out]")
