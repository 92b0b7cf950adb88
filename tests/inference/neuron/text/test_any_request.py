"""Whatever a parser lets through is prepared or refused: nothing else happens to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.answers import build_answer
from inference.neuron.text.model_text import ModelText
from inference.neuron.text.prompts import prepare
from inference.protocol import generation as parts
from inference.protocol.generation import SamplingOptions
from inference.text.tool_calls import FORMATS
from inference.text.tool_calls.json_formats import MistralFormat
from inference.text.tool_calls.python_formats import Llama3Format
from inference.text.tool_calls.tag_formats import QWEN_CODER, TagFormat
from inference.wire.failures import FAILURES
from tests.inference.neuron.model_texts import CHAT_TEMPLATE, model_text
from tests.inference.text.family_templates import LLAMA, MISTRAL, QWEN

FORMATS = {
    QWEN: FORMATS["hermes"],
    CHAT_TEMPLATE: TagFormat(QWEN_CODER),
    LLAMA: Llama3Format(),
    MISTRAL: MistralFormat(writes_lists=True),
}
NAMES = st.sampled_from(["f", "g", "get weather", '"'])
WORDS = st.text('ab<>{}\n"🙂', max_size=6) | st.sampled_from(["<think>", "</think>", "<|im_end|>"])
ODD = st.dictionaries(st.sampled_from(["type", "not", "$ref", "x-a", "pattern"]), WORDS)
VALUES = ODD | st.sampled_from([{}, {"type": "string"}, {"type": "integer", "minimum": 1}])
SCHEMAS = VALUES | st.builds(
    lambda fields, required: {"type": "object", "properties": fields, "required": required},
    st.dictionaries(NAMES, VALUES, max_size=2),
    st.lists(NAMES, max_size=2),
)
CALLS = st.builds(parts.ToolCall, id=WORDS, name=NAMES, arguments=WORDS)
MESSAGES = st.builds(
    parts.ChatMessage,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.none() | WORDS,
    name=st.none() | NAMES,
    tool_call_id=st.none() | WORDS,
    tool_calls=st.lists(CALLS, max_size=2),
    reasoning=st.none() | WORDS,
)
TOOLS = st.builds(
    parts.ToolDefinition,
    name=NAMES,
    path=st.just("tools[0]"),
    description=st.none() | WORDS,
    parameters=st.none() | SCHEMAS,
    strict=st.booleans(),
)
MODES = st.sampled_from(["auto", "none", "required"])
CHATS = st.builds(
    parts.ChatInput,
    messages=st.lists(MESSAGES, min_size=1, max_size=4),
    tools=st.lists(TOOLS, max_size=2, unique_by=lambda tool: tool.name),
    tool_choice=st.builds(parts.ToolChoice, mode=MODES, name=st.none() | NAMES),
    parallel_tool_calls=st.booleans(),
    template_kwargs=st.dictionaries(st.sampled_from(["enable_thinking", "a", "tools"]), WORDS),
    thinking=st.none() | st.booleans(),
    thinking_budget_tokens=st.none() | st.integers(0, 9),
    reasoning_effort=st.none() | WORDS,
    shows_reasoning=st.booleans(),
)
TEXTS = st.builds(parts.TextInput, texts=st.lists(WORDS, min_size=1, max_size=2))
TOKENS = st.lists(st.lists(st.integers(-1, 1001), max_size=3), min_size=1, max_size=2)
REQUESTS = st.builds(
    parts.GenerationRequest,
    model=st.just("m"),
    input=CHATS | TEXTS | st.builds(parts.TokensInput, prompts=TOKENS),
    sampling=st.builds(SamplingOptions, max_tokens=st.none() | st.integers(1, 3000)),
    stop=st.lists(WORDS, max_size=2),
    n=st.integers(1, 3),
    output_format=st.none()
    | st.builds(parts.OutputFormat, path=st.just("format"), schema=st.booleans() | SCHEMAS),
    echo=st.booleans(),
    ends_at_context=st.booleans(),
)


@pytest.fixture(scope="module")
def texts(thinking_dir: Path, sentencepiece_dir: Path) -> list[ModelText]:
    """Every format, with templates that take tools, and one model without any."""
    some = [
        dataclasses.replace(
            model_text(thinking_dir, chat_template=template, context_tokens=2000), tool_format=form
        )
        for template, form in FORMATS.items()
    ]
    return [*some, model_text(sentencepiece_dir, context_tokens=50, max_output_tokens=20)]


@settings(max_examples=300)
@given(request=REQUESTS, which=st.integers(0, 4))
def test_any_request_is_prepared_or_refused(
    texts: list[ModelText], request: parts.GenerationRequest, which: int
) -> None:
    try:
        prepared = prepare(request, texts[which])
        answer = build_answer("r", request, prepared, texts[which])
    except RequestRefusedError as refusal:
        assert refusal.failure.code in FAILURES
        assert refusal.failure.message
    else:
        assert answer.num_sequences == request.n * len(prepared.prompts)
        assert prepared.params.max_tokens >= 1
