"""Where templates come from, what they see, and what happens when one refuses."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from inference.protocol.generation import ChatInput, ChatMessage, ToolCall, ToolDefinition
from inference.text.chat_template import ChatTemplate, TemplateSources, find_templates
from inference.text.errors import TemplateRenderError, TokenizerFilesError

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
    return ChatTemplate(TemplateSources(source), {"bos_token": "<s>"}).render(chat)


def test_precedence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert find_templates(tmp_path, None).default == "config"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert find_templates(tmp_path, None).default == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert find_templates(tmp_path, None).default == "jinja"
    assert find_templates(tmp_path, "spec").default == "spec"


def test_a_named_list_has_a_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    sources = find_templates(tmp_path, None)
    template = ChatTemplate(sources, {})
    assert template.render(_chat(("user", "x"))) == "d"
    assert "function" in template.render(_chat(("user", "x"), tools=[TOOL]))


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


def test_a_missing_template_is_chatml_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rendered = _render(None, _chat(("user", "Hi")))
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert "ChatML" in caplog.text


def test_a_refusing_template_falls_back_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rendered = _render("{{ raise_exception('roles must alternate') }}", _chat(("user", "Hi")))
    assert rendered.startswith("<|im_start|>user\nHi")
    assert "roles must alternate" in caplog.text


def test_a_refusing_template_with_tools_is_an_error() -> None:
    source = "{{ tools }}{{ raise_exception('bad tools') }}"
    with pytest.raises(TemplateRenderError, match="bad tools"):
        _render(source, _chat(("user", "x"), tools=[TOOL]))


def test_a_template_without_tools_refuses_them() -> None:
    with pytest.raises(TemplateRenderError, match="no place for tools"):
        _render("{{ messages[0].content }}", _chat(("user", "x"), tools=[TOOL]))


def test_system_turns_stay_where_they_are_when_the_template_takes_them() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    chat = _chat(("system", "a"), ("user", "x"), ("system", "b"))
    assert _render(source, chat) == "[system]a[user]x[system]b"


def test_lost_system_turns_are_merged() -> None:
    chat = _chat(("system", "one"), ("user", "x"), ("system", "two"))
    assert _render(FIRST_SYSTEM_ONLY, chat) == "<<one\n\ntwo>>[user]x"


def test_a_refused_system_turn_goes_into_the_first_user_turn() -> None:
    assert _render(REFUSES_SYSTEM, _chat(("system", "one"), ("user", "x"))) == "[user]one\n\nx"


def test_the_sandbox_holds() -> None:
    source = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ tools }}"
    with pytest.raises(TemplateRenderError):
        _render(source, _chat(("user", "x"), tools=[TOOL]))
