"""Chats with tools, late system turns and thinking, through templates like those in the field."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.protocol.images import ImageRef
from inference.text.chat_template import ChatTemplate
from inference.text.errors import TemplateRenderError
from inference.text.template_sources import TemplateSources
from inference.wire.anthropic.messages import parse as parse_messages
from tests.cases import each_case
from tests.inference.text.family_templates import GEMMA, LLAMA, MISTRAL, QWEN

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
    plain = _render(source, [ChatMessage(role="user", content="Rain?")])
    assert "Rain?" in plain and "tool" not in plain.lower()


def test_qwen_shows_thinking_and_closes_the_block_when_nobody_will_see_it() -> None:
    question = [ChatMessage(role="user", content="Rain?")]
    assert _render(QWEN, question).endswith("<think>\n\n</think>\n\n")
    assert _render(QWEN, question, shows_reasoning=True).endswith("<|im_start|>assistant\n")
    assert _render(QWEN, question, thinking=True).endswith("<|im_start|>assistant\n")
    assert "<think>\nI must look.\n</think>" in _render(QWEN, HISTORY, tools=[TOOL])


FAMILIES = {"gemma": GEMMA, "llama": LLAMA, "mistral": MISTRAL, "qwen": QWEN}
SYSTEM, ASKED, CALLED, RESULT = HISTORY[:4]
ANSWERED, AGAIN = HISTORY[4], ChatMessage(role="user", content="Again?")
TWICE, EMPTY = ChatMessage(role="assistant", tool_calls=[CALL, CALL]), replace(AGAIN, content="")


@each_case(
    ("family", "messages", "in_one_turn"),
    [
        ("gemma", [ASKED, AGAIN], "user\nRain?\n\nAgain?<end_of_turn>"),
        ("gemma", [SYSTEM, ASKED, AGAIN], "user\nBe brief.\n\nRain?\n\nAgain?<end_of_turn>"),
        ("gemma", [SYSTEM], "user\nBe brief.<end_of_turn>"),
        ("gemma", [ASKED, ANSWERED, ANSWERED, AGAIN], "model\nYes.\n\nYes.<end_of_turn>"),
        ("gemma", [SYSTEM, ANSWERED, AGAIN], "brief.<end_of_turn>\n<start_of_turn>model\nY"),
        ("mistral", [SYSTEM, ASKED, AGAIN], "[INST] Be brief.\n\nRain?\n\nAgain?[/INST]"),
        ("mistral", [ASKED, SYSTEM, AGAIN], "[INST] Be brief.\n\nRain?\n\nAgain?[/INST]"),
        ("mistral", [ASKED, EMPTY, AGAIN], "[INST] Rain?\n\nAgain?["),
        ("mistral", [ASKED, CALLED, RESULT, AGAIN], '{"rain": true}\n\nAgain?, "call_id"'),
        ("mistral", [ASKED, CALLED, RESULT, ASKED, AGAIN], "true}\n\nRain?\n\nAgain?, "),
        ("mistral", [ASKED, CALLED, RESULT, RESULT, AGAIN], "true}\n\nAgain?, "),
        ("qwen", [ASKED, AGAIN], "user\nRain?<|im_end|>\n<|im_start|>user\nAgain?<|im_end|>"),
        ("qwen", [ASKED, CALLED, RESULT, AGAIN], "<|im_start|>user\nAgain?<|im_end|>"),
    ],
)
def test_neighbours_are_joined(family: str, messages: list[ChatMessage], in_one_turn: str) -> None:
    for tools in [[], [TOOL]] if family != "gemma" else [[]]:
        assert in_one_turn in _render(FAMILIES[family], messages, tools=tools)


def test_images_are_joined_with_the_texts_beside_them() -> None:
    image = ImageRef(digest="d", media_type="image/png", num_bytes=1, width_px=1, height_px=1)
    seen = ChatMessage(role="user", content="Look.", parts=[image, "Look."])
    lists = "{% for part in m.content %}<{{ part.type }}:{{ part.text }}>{% endfor %}"
    source = GEMMA.replace(
        "{{ m.content | trim }}",
        f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{lists}{{% endif %}}",
    )
    assert "user\n<image:><text:Look.\n\nAgain?>" in _render(source, [seen, AGAIN])
    assert "user\n<text:Again?\n\n><image:><text:Look.>" in _render(source, [AGAIN, seen])


@each_case(
    ("source", "messages", "turn"),
    [
        ("gemma", [ANSWERED, AGAIN], "turn 1 of 2 (assistant): Conversation roles must"),
        ("gemma", [ASKED, ANSWERED, ASKED, RESULT, ANSWERED], "turn 5 of 5 (assistant after tool)"),
        ("mistral", [SYSTEM, ASKED, ANSWERED, RESULT, ANSWERED], "turn 4 of 4 (assistant after t"),
        ("mistral", [SYSTEM, ASKED, CALLED, AGAIN, ANSWERED, AGAIN], "turn 3 of 5 (user after a"),
        ("mistral", [*[ASKED, ANSWERED] * 20, ASKED, CALLED, AGAIN], "turn 43 of 43 (user after a"),
        (
            "llama",
            [ASKED, ANSWERED, ASKED, TWICE, RESULT, RESULT, AGAIN],
            "turn 4 of 7 (assistant after user): single tool-calls",
        ),
        (
            "{{ raise_exception('never') }}",
            [ASKED, ANSWERED],
            "the model's chat template failed: n",
        ),
        ("{% if tools %}{{ raise_exception('tools') }}{% endif %}", [ASKED], "failed: too"),
        (
            "{% for m in messages if m.role == 'system' or 'brief' in m.content %}"
            "{{ raise_exception('briefly') }}{% endfor %}",
            [ASKED, SYSTEM],
            "template fails with a system turn: briefly",
        ),
        ("{% nothing %}", [ASKED], "the model's chat template failed: "),
    ],
)
def test_what_is_still_refused_is_named(
    source: str, messages: list[ChatMessage], turn: str
) -> None:
    tools = [TOOL] if source in ("llama", "mistral") or "tools" in source else []
    with pytest.raises(TemplateRenderError, match=re.escape(turn)):
        _render(FAMILIES.get(source, source), messages, tools=tools)


@each_case(
    ("sent", "written"),
    [
        ("", {}),
        (" ", {}),
        ("null", {}),
        ("[]", {}),
        ('""', {}),
        ('{"city": "Köln"}', {"city": "Köln"}),
        (r'"{\"city\": \"Köln\"}"', {"city": "Köln"}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        *[
            (text, {"invalid_arguments": text})
            for text in (
                *("{", '{"city": "Kö', "[1]", "0", "false", '"Köln"', "Köln"),
                *('{"a": NaN}', r'{"a": "\ud800"}', '{"a":' * 3000, "[" * 3000),
            )
        ],
    ],
)
def test_it_continues_after_a_call_of_any_arguments(sent: str, written: dict[str, object]) -> None:
    call = ToolCall(id=CALL.id, name="weather", arguments=sent)
    assert call.arguments_object == written
    turns = [ASKED, ChatMessage(role="assistant", tool_calls=[call]), RESULT, AGAIN]
    for source in (QWEN, LLAMA, MISTRAL):
        rendered = _render(source, turns, tools=[TOOL])
        assert source == MISTRAL or json.dumps(written, ensure_ascii=False) in rendered
        rendered.encode()


def test_a_reminder_beside_a_result_goes_with_it_as_claude_code_sends_it() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
    turns = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, reminder]},
    ]
    body = json.dumps({"model": "m", "max_tokens": 5, "messages": turns}).encode()
    chat = parse_messages(body).generation.input
    assert isinstance(chat, ChatInput)
    joined = f'{{"content": rain\n\n{reminder["text"]}, "call_id"'
    assert joined in _render(MISTRAL, chat.messages)
