"""Chats with tools, late system turns and thinking, through templates like those in the field."""

from __future__ import annotations

import pytest

from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.text.errors import TemplateRenderError
from inference.text.templates.chat_template import ChatTemplate
from inference.text.templates.template_sources import TemplateSources
from tests.cases import each_case
from tests.inference.text.family_templates import LLAMA, MISTRAL, QWEN

TOOL = ToolDefinition(
    name="weather",
    path="tools[0]",
    description="Reports the weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
CALL = ToolCall(id="call_1d8f2a", name="weather", arguments='{"city": "Köln"}')
HISTORY = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="Rain?"),
    ChatMessage(role="assistant", tool_calls=[CALL], reasoning="I must look."),
    ChatMessage(role="tool", tool_call_id=CALL.id, content='{"rain": true}'),
    ChatMessage(role="assistant", content="Yes."),
    ChatMessage(role="system", content="Now in French."),
    ChatMessage(role="user", content="And now?"),
]


def _render(source: str, messages: list[ChatMessage], **kwargs: object) -> str:
    chat = ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]
    return ChatTemplate(TemplateSources(source), {"bos_token": "<s>"}).render(chat).text


@each_case("source", [QWEN, LLAMA, MISTRAL])
@each_case("tools", [[TOOL], []])
def test_a_conversation_with_calls_renders_whole(source: str, tools: list[ToolDefinition]) -> None:
    rendered = _render(source, HISTORY, tools=tools)
    for text in ("Be brief.\n\nNow in French.", "Rain?", "And now?", "Yes.", "rain", "Köln"):
        assert rendered.count(text) == 1, text
    assert ("Reports the weather." in rendered) is bool(tools)
    assert rendered.index("Be brief.") < rendered.index("And now?")


@each_case("source", [QWEN, LLAMA, MISTRAL])
def test_a_plain_conversation_renders(source: str) -> None:
    rendered = _render(source, [ChatMessage(role="user", content="Rain?")])
    assert "Rain?" in rendered
    assert "tool" not in rendered.lower()


def test_qwen_shows_thinking_and_closes_the_block_when_nobody_will_see_it() -> None:
    question = [ChatMessage(role="user", content="Rain?")]
    assert _render(QWEN, question).endswith("<think>\n\n</think>\n\n")
    assert _render(QWEN, question, shows_reasoning=True).endswith("<|im_start|>assistant\n")
    assert _render(QWEN, question, thinking=True).endswith("<|im_start|>assistant\n")
    assert "<think>\nI must look.\n</think>" in _render(QWEN, HISTORY, tools=[TOOL])


def test_llama_refuses_two_calls_in_one_turn_and_reports_it() -> None:
    both = ChatMessage(role="assistant", tool_calls=[CALL, CALL])
    with pytest.raises(TemplateRenderError, match="single tool-calls only"):
        _render(LLAMA, [HISTORY[1], both, HISTORY[3]], tools=[TOOL])


def test_mistral_refuses_turns_that_do_not_alternate() -> None:
    twice = [HISTORY[1], HISTORY[1]]
    with pytest.raises(TemplateRenderError, match="must alternate"):
        _render(MISTRAL, twice, tools=[TOOL])
    assert "<|im_start|>" in _render(MISTRAL, twice), "without tools it falls back to ChatML"
