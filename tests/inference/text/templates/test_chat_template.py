"""Where templates come from, what they see, and what happens when one refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    ToolCall,
    ToolChoice,
    ToolDefinition,
)
from inference.text.errors import (
    NoPlaceForToolsError,
    TemplateRenderError,
    TokenizerFilesError,
)
from inference.text.templates.chat_template import ChatTemplate, _keeps_system_texts
from inference.text.templates.template_sources import TemplateSources, find_templates
from tests.cases import each_case

REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
FIRST_SYSTEM_ONLY = (
    "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
TOOL = ToolDefinition(name="f", path="tools[0]")


def _chat(*turns: tuple[str, str], **kwargs: object) -> ChatInput:
    messages = [ChatMessage(role=role, content=content) for role, content in turns]
    return ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]


def _render(source: str | None, chat: ChatInput) -> str:
    return ChatTemplate(TemplateSources(source), {"bos_token": "<s>"}).render(chat).text


def test_precedence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert find_templates(tmp_path, None).default == "config"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert find_templates(tmp_path, None).default == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert find_templates(tmp_path, None).default == "jinja"
    (tmp_path / "own.jinja").write_text("own")
    assert find_templates(tmp_path, f"file:{tmp_path / 'own.jinja'}").default == "own"


def test_a_named_list_has_a_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    sources = find_templates(tmp_path, None)
    template = ChatTemplate(sources, {})
    assert template.render(_chat(("user", "x"))).text == "d"
    assert "function" in template.render(_chat(("user", "x"), tools=[TOOL])).text


def test_a_further_template_file_is_for_tools(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("d")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    sources = find_templates(tmp_path, None)
    assert (sources.default, sources.for_tools) == ("d", "{{ tools }}")


def test_a_broken_template_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text("[")
    with pytest.raises(TokenizerFilesError, match=r"chat_template\.json"):
        find_templates(tmp_path, None)


def test_special_tokens_and_kwargs_reach_the_template() -> None:
    chat = _chat(("user", "x"), template_kwargs={"enable_thinking": False})
    assert _render("{{ bos_token }}{{ enable_thinking }}", chat) == "<s>False"


def test_kwargs_may_not_replace_the_conversation() -> None:
    with pytest.raises(TemplateRenderError, match="chat_template"):
        _render("x", _chat(("user", "x"), template_kwargs={"chat_template": "y"}))


def test_tool_call_arguments_arrive_as_objects() -> None:
    call = ToolCall(id="1", name="f", arguments='{"a": 1}')
    chat = ChatInput(messages=[ChatMessage(role="assistant", tool_calls=[call])], tools=[TOOL])
    source = "{% if tools %}{{ messages[0].tool_calls[0].function.arguments.a + 1 }}{% endif %}"
    assert _render(source, chat) == "2"


def _with_call(**kwargs: object) -> ChatInput:
    call = ToolCall(id="call_0123456789", name="f", arguments='{"a": 1}')
    messages = [
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", tool_call_id=call.id, content="2"),
    ]
    return ChatInput(messages=messages, **kwargs)  # type: ignore[arg-type]


def test_arguments_stay_text_for_a_template_that_joins_them() -> None:
    source = "{# tools #}{{ 'calls ' + messages[0].tool_calls[0].function.arguments }}"
    assert _render(source, _with_call()) == 'calls {"a": 1}'


def test_identifiers_are_shortened_for_a_template_that_counts_them() -> None:
    source = (
        "{# tools #}{% for m in messages %}"
        "{% set id = m.tool_call_id if m.role == 'tool' else m.tool_calls[0].id %}"
        "{% if id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}[{{ id }}]"
        "{% endfor %}"
    )
    called, answered = _render(source, _with_call()).strip("[]").split("][")
    assert called == answered
    assert called.isalnum()


@each_case("kwargs", [{}, {"tools": [TOOL]}])
def test_calls_that_a_template_cannot_show_are_refused(kwargs: dict[str, object]) -> None:
    for source in (None, "{{ messages }}", "{# tools #}{{ messages[0].content }}"):
        with pytest.raises(TemplateRenderError, match="no place for tool"):
            _render(source, _with_call(**kwargs))


SHOWS_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}({{ c.function.name }})"
    "{% endfor %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def test_earlier_calls_need_no_place_for_tools() -> None:
    assert _render(SHOWS_CALLS, _with_call()) == "(f)[assistant][tool]2"
    with pytest.raises(NoPlaceForToolsError):
        _render(SHOWS_CALLS, _with_call(tools=[TOOL]))


def test_a_result_that_a_template_drops_is_refused() -> None:
    source = "{% for m in messages if m.role != 'tool' %}{{ m.tool_calls[0].type }}{% endfor %}"
    with pytest.raises(TemplateRenderError, match="drops what a tool returned"):
        _render(source, _with_call())


def test_a_refusing_template_with_calls_in_the_history_is_an_error() -> None:
    source = "{# tools tool_calls #}{{ raise_exception('one call at a time') }}"
    with pytest.raises(TemplateRenderError, match="one call at a time"):
        _render(source, _with_call())


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    chat = _chat(("user", "x"), tools=[TOOL], tool_choice=ToolChoice(mode="none"))
    assert _render("{{ tools is none }}", chat) == "True"
    assert _render("no place", chat) == "no place"


@each_case(
    ("kwargs", "expected"),
    [
        ({}, "False"),
        ({"shows_reasoning": True}, "unsaid"),
        ({"thinking": True}, "True"),
        ({"thinking": False, "shows_reasoning": True}, "False"),
        ({"thinking": False, "template_kwargs": {"enable_thinking": True}}, "True"),
        ({"template_kwargs": {"thinking": True}}, "True"),
    ],
)
def test_what_the_template_gets_about_thinking(kwargs: dict[str, object], expected: str) -> None:
    for switch in ("enable_thinking", "thinking"):
        source = f"{{{{ {switch} if {switch} is defined else 'unsaid' }}}}"
        assert _render(source, _chat(("user", "x"), **kwargs)) == expected


def test_the_effort_reaches_the_template() -> None:
    chat = _chat(("user", "x"), reasoning_effort="high")
    assert _render("{{ reasoning_effort }}", chat) == "high"


def test_a_prompt_may_end_with_the_last_turn() -> None:
    chat = _chat(("user", "Hi"), adds_generation_prompt=False)
    source = "{{ messages[0].content }}{% if add_generation_prompt %}[answer]{% endif %}"
    assert _render(source, chat) == "Hi"
    assert _render(source, _chat(("user", "Hi"))) == "Hi[answer]"
    assert _render(None, chat) == "<|im_start|>user\nHi<|im_end|>\n"


def test_a_missing_template_is_chatml() -> None:
    rendered = _render(None, _chat(("user", "Hi")))
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_without_tools_refuses_them() -> None:
    with pytest.raises(NoPlaceForToolsError, match="no place for tools"):
        _render("{{ messages[0].content }}", _chat(("user", "x"), tools=[TOOL]))


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
    for mode in ("auto", "none"):
        chat = _chat(*turns, tools=tools, tool_choice=ToolChoice(mode=mode))
        if mode == "auto":
            with pytest.raises(NoPlaceForToolsError):
                _render(source, chat)
        else:
            assert "Of a town." not in _render(source, chat)


def test_system_turns_become_one_first_turn() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    chat = _chat(("system", "a"), ("user", "x"), ("system", "b"))
    assert _render(source, chat) == "[system]a\n\nb[user]x"
    assert _render(source, _chat(("user", "x"), ("system", "b"))) == "[system]b[user]x"


def test_lost_system_turns_are_merged() -> None:
    chat = _chat(("system", "one"), ("user", "x"), ("system", "two"))
    assert _render(FIRST_SYSTEM_ONLY, chat) == "<<one\n\ntwo>>[user]x"


def test_a_refused_system_turn_goes_into_the_first_user_turn() -> None:
    assert _render(REFUSES_SYSTEM, _chat(("system", "one"), ("user", "x"))) == "[user]one\n\nx"


def test_the_sandbox_holds() -> None:
    source = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ tools }}"
    with pytest.raises(TemplateRenderError):
        _render(source, _chat(("user", "x"), tools=[TOOL]))


class ScannedText(str):
    """Counts how many characters are looked at to find others in it."""

    num_scanned = 0

    def find(self, sub: str, start: int = 0) -> int:  # type: ignore[override]
        found = super().find(sub, start)
        self.num_scanned += (len(self) if found < 0 else found + len(sub)) - start
        return found

    def __contains__(self, sub: str) -> bool:  # type: ignore[override]
        return self.find(sub) >= 0


def test_looking_for_system_turns_reads_the_prompt_once() -> None:
    messages = [ChatMessage(role="system", content=f"rule {i} is kept") for i in range(8000)]
    rendered = ScannedText("\n".join(str(message.content) for message in messages))
    assert _keeps_system_texts(rendered, messages)
    assert rendered.num_scanned <= len(rendered)


def test_a_system_turn_that_was_lost_is_missed() -> None:
    messages = [ChatMessage(role="system", content=text) for text in ("one", "two", "two")]
    assert _keeps_system_texts("one two two", messages)
    assert not _keeps_system_texts("one two", messages)
    assert not _keeps_system_texts("two two", messages)
