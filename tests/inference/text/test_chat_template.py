"""What templates see of chats with tools, late system turns, images and thinking, and what happens
when one refuses; through templates like those in the field."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from inference.protocol import generation as parts
from inference.protocol.images import ImageRef
from inference.text.chat_template import ChatTemplate, _keeps_system_texts
from inference.text.errors import TemplateRenderError
from inference.text.template_sources import TemplateSources
from tests.cases import each_case
from tests.inference.text.family_templates import GEMMA, LLAMA, MISTRAL, QWEN

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
FIRST_SYSTEM_ONLY = (
    "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SHOWS_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}({{ c.function.name }})"
    "{% endfor %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
NO_RESULTS = "{% for m in messages if m.role != 'tool' %}{{ m.tool_calls[0].type }}{% endfor %}"
ESCAPES = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ tools }}"
ENDS = "{{ messages[0].content }}{% if add_generation_prompt %}[answer]{% endif %}"
NINE = (
    "{# tools #}{% for m in messages %}"
    "{% set id = m.tool_call_id if m.role == 'tool' else m.tool_calls[0].id %}"
    "{% if id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}[{{ id }}]"
    "{% endfor %}"
)
"""It counts the characters of identifiers."""
TOOL = parts.ToolDefinition(
    name="weather",
    path="tools[0]",
    description="Reports the weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
CALL = parts.ToolCall(id="call_1d8f2a", name="weather", arguments='{"city": "Köln"}')
SYSTEM = parts.ChatMessage(role="system", content="Be brief.")
ASKED = parts.ChatMessage(role="user", content="Rain?")
CALLED = parts.ChatMessage(role="assistant", tool_calls=[CALL], reasoning="I must look.")
TWICE = parts.ChatMessage(role="assistant", tool_calls=[CALL, CALL])
RESULT = parts.ChatMessage(role="tool", tool_call_id=CALL.id, content='{"rain": true}')
ANSWERED = parts.ChatMessage(role="assistant", content="Yes.")
LATE = parts.ChatMessage(role="system", content="Now in French.")
AGAIN = parts.ChatMessage(role="user", content="Again?")
EMPTY = replace(AGAIN, content="")
HISTORY = [SYSTEM, ASKED, CALLED, RESULT, ANSWERED, LATE, AGAIN]
UNUSED = {"tools": [TOOL], "tool_choice": parts.ToolChoice(mode="none")}
BOTH = [TOOL, parts.ToolDefinition(name="other", path="tools[1]")]


def _render(source: str | None, messages: list[parts.ChatMessage], **kwargs: object) -> str:
    chat = parts.ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]
    return ChatTemplate(TemplateSources(source), {"bos_token": "<s>"}).render(chat).text


def test_what_a_template_gets() -> None:
    for source, kwargs, expected in (
        ("{{ bos_token }}{{ a }}", {"template_kwargs": {"a": False}}, "<s>False"),
        ("{{ reasoning_effort }}", {"reasoning_effort": "high"}, "high"),
        ("{{ tools is none }}", UNUSED, "True"),
        ("no place", UNUSED, "no place"),
        (ENDS, {"adds_generation_prompt": False}, "Rain?"),
        (ENDS, {}, "Rain?[answer]"),
        (None, {"adds_generation_prompt": False}, "<|im_start|>user\nRain?<|im_end|>\n"),
        (None, {}, "<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n"),
        *(
            (f"{{{{ {switch} if {switch} is defined else 'unsaid' }}}}", kwargs, expected)
            for switch in ("enable_thinking", "thinking")
            for kwargs, expected in (
                ({}, "False"),
                ({"shows_reasoning": True}, "unsaid"),
                ({"thinking": True}, "True"),
                ({"thinking": False, "shows_reasoning": True}, "False"),
                ({"thinking": False, "template_kwargs": {"enable_thinking": True}}, "True"),
                ({"template_kwargs": {"thinking": True}}, "True"),
            )
        ),
    ):
        assert _render(source, [ASKED], **kwargs) == expected


def test_calls_are_shown_as_the_template_needs_them() -> None:
    shown = "{{ messages[0].tool_calls[0].function.arguments.city }}{{ messages[1].content }}"
    expected = 'Köln{"rain": true}'
    assert _render(f"{{# tools #}}{shown}", [CALLED, RESULT], tools=[TOOL]) == expected
    source = "{# tools #}{{ 'calls ' + messages[0].tool_calls[0].function.arguments }}"
    assert _render(source, [CALLED]) == 'calls {"city": "Köln"}'
    called, answered = _render(NINE, [CALLED, RESULT]).strip("[]").split("][")
    assert called == answered and called.isalnum()
    expected = '(weather)[assistant][tool]{"rain": true}'
    assert _render(SHOWS_CALLS, [CALLED, RESULT]) == expected, "no place for tools"


@each_case("source", [QWEN, LLAMA, MISTRAL])
@each_case("tools", [[TOOL], []])
def test_a_conversation_with_calls_renders_whole(
    source: str, tools: list[parts.ToolDefinition]
) -> None:
    rendered = _render(source, HISTORY, tools=tools)
    for text in ("Be brief.\n\nNow in French.", "Rain?", "Again?", "Yes.", "rain", "Köln"):
        assert rendered.count(text) == 1, text
    assert ("Reports the weather." in rendered) is bool(tools)
    assert rendered.index("Be brief.") < rendered.index("Again?")
    assert ("<think>\nI must look.\n</think>" in rendered) is (source == QWEN)
    plain = _render(source, [ASKED])
    assert "Rain?" in plain and "tool" not in plain.lower()


@each_case("source", [REFUSES_SYSTEM, FIRST_SYSTEM_ONLY, None])
def test_a_forced_call_needs_no_place_for_tools(source: str | None) -> None:
    """The tools that may be called are described in a system turn, wherever that goes."""
    turns = [SYSTEM, ASKED]
    named = parts.ToolChoice(mode="required", name="weather")
    rendered = _render(source, turns, tools=BOTH, tool_choice=named)
    assert "Be brief." in rendered and "Reports the weather." in rendered and '"city"' in rendered
    assert '"other"' not in rendered
    required = parts.ToolChoice(mode="required")
    assert '"other"' in _render(source, turns, tools=BOTH, tool_choice=required)
    assert "Reports" not in _render(source, turns, **UNUSED)
    with pytest.raises(TemplateRenderError, match="no place for tools"):
        _render(source, turns, tools=BOTH)


FAMILIES = {"gemma": GEMMA, "llama": LLAMA, "mistral": MISTRAL, "qwen": QWEN}


def test_neighbours_are_joined_and_system_turns_go_where_they_can() -> None:
    for source, messages, in_one_turn in (
        ("gemma", [ASKED, AGAIN], "user\nRain?\n\nAgain?<end_of_turn>"),
        ("gemma", [SYSTEM, ASKED, AGAIN], "user\nBe brief.\n\nRain?\n\nAgain?<end_of_turn>"),
        ("gemma", [SYSTEM], "user\nBe brief.<end_of_turn>"),
        ("gemma", [ASKED, ANSWERED, ANSWERED, AGAIN], "model\nYes.\n\nYes.<end_of_turn>"),
        ("gemma", [SYSTEM, ANSWERED, AGAIN], "brief.<end_of_turn>\n<start_of_turn>model\nY"),
        ("mistral", [SYSTEM, ASKED, AGAIN], "[INST] Be brief.\n\nRain?\n\nAgain?[/INST]"),
        ("mistral", [ASKED, SYSTEM, AGAIN], "[INST] Be brief.\n\nRain?\n\nAgain?[/INST]"),
        ("mistral", [ASKED, EMPTY, AGAIN], "[INST] Rain?\n\nAgain?["),
        # A reminder beside a result, as Claude Code sends it, goes with the result.
        ("mistral", [ASKED, CALLED, RESULT, AGAIN], '{"rain": true}\n\nAgain?, "call_id"'),
        ("mistral", [ASKED, CALLED, RESULT, ASKED, AGAIN], "true}\n\nRain?\n\nAgain?, "),
        ("mistral", [ASKED, CALLED, RESULT, RESULT, AGAIN], "true}\n\nAgain?, "),
        ("qwen", [ASKED, AGAIN], "user\nRain?<|im_end|>\n<|im_start|>user\nAgain?<|im_end|>"),
        ("qwen", [ASKED, CALLED, RESULT, AGAIN], "<|im_start|>user\nAgain?<|im_end|>"),
        (TURNS, [SYSTEM, ASKED, LATE], "[system]Be brief.\n\nNow in French.[user]Rain?"),
        (TURNS, [ASKED, LATE], "[system]Now in French.[user]Rain?"),
        (FIRST_SYSTEM_ONLY, [SYSTEM, ASKED, LATE], "<<Be brief.\n\nNow in French.>>[user]Rain?"),
        (REFUSES_SYSTEM, [SYSTEM, ASKED], "[user]Be brief.\n\nRain?"),
    ):
        for tools in [[], [TOOL]] if source in ("mistral", "qwen") else [[]]:
            assert in_one_turn in _render(FAMILIES.get(source, source), messages, tools=tools)
        twice = [parts.ChatMessage(role="system", content=text) for text in ("one", "two", "two")]
        kept = [_keeps_system_texts(text, twice) for text in ("one two two", "one two", "two two")]
        assert kept == [True, False, False], "one that was lost is missed"


def test_images_are_joined_with_the_texts_beside_them() -> None:
    image = ImageRef(digest="d", media_type="image/png", num_bytes=1, width_px=1, height_px=1)
    seen = parts.ChatMessage(role="user", content="Look.", parts=[image, "Look."])
    lists = "{% for part in m.content %}<{{ part.type }}:{{ part.text }}>{% endfor %}"
    source = GEMMA.replace(
        "{{ m.content | trim }}",
        f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{lists}{{% endif %}}",
    )
    assert "user\n<image:><text:Look.\n\nAgain?>" in _render(source, [seen, AGAIN])
    assert "user\n<text:Again?\n\n><image:><text:Look.>" in _render(source, [AGAIN, seen])


RAISES = "{{ raise_exception('never') }}"
NO_BRIEFS = (
    "{% for m in messages if m.role == 'system' or 'brief' in m.content %}"
    "{{ raise_exception('briefly') }}{% endfor %}"
)
WITH = {"tools": [TOOL]}


@each_case(
    ("source", "messages", "kwargs", "problem"),
    [
        *(
            (source, [CALLED, RESULT], kwargs, "no place for tool")
            for source in (None, "{{ messages }}", "{# tools #}{{ messages[0].content }}")
            for kwargs in ({}, WITH)
        ),
        (SHOWS_CALLS, [CALLED, RESULT], WITH, "no place for tools"),
        ("{{ messages[0].content }}", [ASKED], WITH, "no place for tools"),
        (NO_RESULTS, [CALLED, RESULT], {}, "drops what a tool returned"),
        ("x", [ASKED], {"template_kwargs": {"chat_template": "y"}}, "chat_template"),
        (ESCAPES, [ASKED], WITH, "unsafe"),
        ("gemma", [ANSWERED, AGAIN], {}, "turn 1 of 2 (assistant): Conversation roles must"),
        ("gemma", [ASKED, ANSWERED, ASKED, RESULT, ANSWERED], {}, "turn 5 of 5 (assistant after t"),
        ("mistral", [SYSTEM, ASKED, ANSWERED, RESULT, ANSWERED], WITH, "turn 4 of 4 (assistant a"),
        ("mistral", [SYSTEM, ASKED, CALLED, AGAIN, ANSWERED, AGAIN], WITH, "turn 3 of 5 (user aft"),
        ("mistral", [*[ASKED, ANSWERED] * 20, ASKED, CALLED, AGAIN], WITH, "turn 43 of 43 (user a"),
        (
            "llama",
            [ASKED, ANSWERED, ASKED, TWICE, RESULT, RESULT, AGAIN],
            WITH,
            "turn 4 of 7 (assistant after user): single tool-calls",
        ),
        (RAISES, [ASKED, ANSWERED], {}, "the model's chat template failed: never"),
        (f"{{% if tools %}}{RAISES}{{% endif %}}", [ASKED], WITH, "failed: never"),
        (NO_BRIEFS, [ASKED, SYSTEM], {}, "template fails with a system turn: briefly"),
        ("{% nothing %}", [ASKED], {}, "the model's chat template failed: "),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(
    source: str | None, messages: list[parts.ChatMessage], kwargs: dict[str, object], problem: str
) -> None:
    with pytest.raises(TemplateRenderError, match=re.escape(problem)) as refused:
        _render(FAMILIES.get(source or "", source), messages, **kwargs)
    assert refused.value.param == "tools" or problem != "no place for tools"


def test_it_continues_after_a_call_of_any_arguments() -> None:
    for sent, written in (
        *((text, {}) for text in ("", " ", "null", "[]", '""')),
        ('{"city": "Köln"}', {"city": "Köln"}),
        (r'"{\"city\": \"Köln\"}"', {"city": "Köln"}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        *(
            (text, {"invalid_arguments": text})
            for text in (
                *("{", '{"city": "Kö', "[1]", "0", "false", '"Köln"', "Köln"),
                *('{"a": NaN}', r'{"a": "\ud800"}', '{"a":' * 3000, "[" * 3000),
            )
        ),
    ):
        call = parts.ToolCall(id=CALL.id, name="weather", arguments=sent)
        assert call.arguments_object == written
        turns = [ASKED, parts.ChatMessage(role="assistant", tool_calls=[call]), RESULT, AGAIN]
        for source in (QWEN, LLAMA, MISTRAL):
            rendered = _render(source, turns, tools=[TOOL])
            assert source == MISTRAL or json.dumps(written, ensure_ascii=False) in rendered
            rendered.encode()
