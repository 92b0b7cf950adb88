"""Where templates come from, what they see, and what happens when one refuses."""

from __future__ import annotations

import pytest

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    ToolCall,
    ToolChoice,
    ToolDefinition,
)
from inference.text.chat_template import ChatTemplate, _keeps_system_texts
from inference.text.errors import TemplateRenderError
from inference.text.template_sources import TemplateSources
from tests.cases import each_case

REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
FIRST_SYSTEM_ONLY = (
    "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ENDS = "{{ messages[0].content }}{% if add_generation_prompt %}[answer]{% endif %}"
TOOL = ToolDefinition(name="f", path="tools[0]")


def _chat(*turns: tuple[str, str], **kwargs: object) -> ChatInput:
    messages = [ChatMessage(role=role, content=content) for role, content in turns]
    return ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]


def _render(source: str | None, chat: ChatInput) -> str:
    return ChatTemplate(TemplateSources(source), {"bos_token": "<s>"}).render(chat).text


@each_case(
    ("source", "kwargs", "expected"),
    [
        (
            "{{ bos_token }}{{ enable_thinking }}",
            {"template_kwargs": {"enable_thinking": False}},
            "<s>False",
        ),
        ("{{ reasoning_effort }}", {"reasoning_effort": "high"}, "high"),
        ("{{ tools is none }}", {"tools": [TOOL], "tool_choice": ToolChoice(mode="none")}, "True"),
        ("no place", {"tools": [TOOL], "tool_choice": ToolChoice(mode="none")}, "no place"),
        (ENDS, {"adds_generation_prompt": False}, "x"),
        (ENDS, {}, "x[answer]"),
        (None, {"adds_generation_prompt": False}, "<|im_start|>user\nx<|im_end|>\n"),
        (None, {}, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_what_a_template_gets(source: str | None, kwargs: dict[str, object], expected: str) -> None:
    assert _render(source, _chat(("user", "x"), **kwargs)) == expected


def _with_call(**kwargs: object) -> ChatInput:
    call = ToolCall(id="call_0123456789", name="f", arguments='{"a": 1}')
    messages = [
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", tool_call_id=call.id, content="2"),
    ]
    return ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]


def test_calls_are_shown_as_the_template_needs_them() -> None:
    shown = "{{ messages[0].tool_calls[0].function.arguments.a + 1 }}{{ messages[1].content }}"
    assert _render(f"{{# tools #}}{shown}", _with_call(tools=[TOOL])) == "22"
    source = "{# tools #}{{ 'calls ' + messages[0].tool_calls[0].function.arguments }}"
    assert _render(source, _with_call()) == 'calls {"a": 1}'
    source = (
        "{# tools #}{% for m in messages %}"
        "{% set id = m.tool_call_id if m.role == 'tool' else m.tool_calls[0].id %}"
        "{% if id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}[{{ id }}]"
        "{% endfor %}"
    )
    called, answered = _render(source, _with_call()).strip("[]").split("][")
    assert called == answered and called.isalnum(), "it counts identifiers"
    assert _render(SHOWS_CALLS, _with_call()) == "(f)[assistant][tool]2", "no place for tools"


SHOWS_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}({{ c.function.name }})"
    "{% endfor %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
NO_RESULTS = "{% for m in messages if m.role != 'tool' %}{{ m.tool_calls[0].type }}{% endfor %}"
ESCAPES = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ tools }}"


@each_case(
    ("source", "chat", "problem"),
    [
        *[
            (source, _with_call(**kwargs), "no place for tool")
            for source in (None, "{{ messages }}", "{# tools #}{{ messages[0].content }}")
            for kwargs in ({}, {"tools": [TOOL]})
        ],
        (SHOWS_CALLS, _with_call(tools=[TOOL]), "no place for tools"),
        ("{{ messages[0].content }}", _chat(("user", "x"), tools=[TOOL]), "no place for tools"),
        (NO_RESULTS, _with_call(), "drops what a tool returned"),
        ("{# tools tool_calls #}{{ raise_exception('only one') }}", _with_call(), "only one"),
        ("x", _chat(("user", "x"), template_kwargs={"chat_template": "y"}), "chat_template"),
        (ESCAPES, _chat(("user", "x"), tools=[TOOL]), "."),
    ],
)
def test_what_it_cannot_show_is_refused(source: str | None, chat: ChatInput, problem: str) -> None:
    with pytest.raises(TemplateRenderError, match=problem) as refused:
        _render(source, chat)
    assert refused.value.param == "tools" or problem != "no place for tools"


def test_what_the_template_gets_about_thinking() -> None:
    for kwargs, expected in (
        ({}, "False"),
        ({"shows_reasoning": True}, "unsaid"),
        ({"thinking": True}, "True"),
        ({"thinking": False, "shows_reasoning": True}, "False"),
        ({"thinking": False, "template_kwargs": {"enable_thinking": True}}, "True"),
        ({"template_kwargs": {"thinking": True}}, "True"),
    ):
        for switch in ("enable_thinking", "thinking"):
            source = f"{{{{ {switch} if {switch} is defined else 'unsaid' }}}}"
            assert _render(source, _chat(("user", "x"), **kwargs)) == expected, kwargs


@each_case("source", [REFUSES_SYSTEM, FIRST_SYSTEM_ONLY, None])
def test_a_forced_call_needs_no_place_for_tools(source: str | None) -> None:
    """The tools that may be called are described in a system turn, wherever that goes."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [
        ToolDefinition(name="weather", path="tools[0]", description="Of a town.", parameters=city),
        ToolDefinition(name="other", path="tools[1]"),
    ]
    turns = (("system", "Be brief."), ("user", "x"))
    named = _chat(*turns, tools=tools, tool_choice=ToolChoice(mode="required", name="weather"))
    rendered = _render(source, named)
    assert "Be brief." in rendered and "Of a town." in rendered and '"city"' in rendered
    assert '"other"' not in rendered
    assert '"other"' in _render(
        source, _chat(*turns, tools=tools, tool_choice=ToolChoice(mode="required"))
    )
    with pytest.raises(TemplateRenderError, match="no place for tools"):
        _render(source, _chat(*turns, tools=tools))
    unused = _chat(*turns, tools=tools, tool_choice=ToolChoice(mode="none"))
    assert "Of a town." not in _render(source, unused)


TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@each_case(
    ("source", "turns", "expected"),
    [
        (TURNS, [("system", "a"), ("user", "x"), ("system", "b")], "[system]a\n\nb[user]x"),
        (TURNS, [("user", "x"), ("system", "b")], "[system]b[user]x"),
        (FIRST_SYSTEM_ONLY, [("system", "a"), ("user", "x"), ("system", "b")], "<<a\n\nb>>[user]x"),
        (REFUSES_SYSTEM, [("system", "a"), ("user", "x")], "[user]a\n\nx"),
    ],
)
def test_where_system_turns_go(source: str, turns: list[tuple[str, str]], expected: str) -> None:
    assert _render(source, _chat(*turns)) == expected
    twice = [ChatMessage(role="system", content=text) for text in ("one", "two", "two")]
    kept = [_keeps_system_texts(text, twice) for text in ("one two two", "one two", "two two")]
    assert kept == [True, False, False], "one that was lost is missed"
