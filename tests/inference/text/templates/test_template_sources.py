"""Which template a model's chats are rendered by: its own, the operator's file, or none."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from inference.protocol.generation import ChatInput, ChatMessage, ToolDefinition
from inference.text.errors import TokenizerFilesError
from inference.text.templates.chat_template import ChatTemplate
from inference.text.templates.template_sources import MAX_TEMPLATE_BYTES, find_templates

CHAT = ChatInput(messages=[ChatMessage(role="user", content="Hello.")])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "chat_template.jinja").write_text("own: {{ messages[0].content }}")
    return directory


def rendered(model: Path, choice: str | None) -> str:
    return ChatTemplate(find_templates(model, choice), {}).render(CHAT).text


def test_the_operators_file_comes_first_then_the_models_files(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert rendered(model, None) == "own: Hello."
    (model / "chat_template.jinja").unlink()
    assert rendered(model, None) == "json"
    (model / "chat_template.json").unlink()
    assert rendered(model, None) == "config"
    file = tmp_path / "mine.jinja"
    file.write_text("mine: {{ messages[0].content }}")
    assert rendered(model, f"file:{file}") == "mine: Hello."


def test_a_template_for_tools_is_a_named_one_or_a_further_file(model: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools }}"}]
    further = model / "additional_chat_templates" / "tool_use.jinja"
    further.parent.mkdir()
    further.write_text("{{ tools }}")
    sources = find_templates(model, None)
    assert (sources.default, sources.for_tools) == ("own: {{ messages[0].content }}", "{{ tools }}")
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    further.unlink()
    template = ChatTemplate(find_templates(model, None), {})
    assert template.render(CHAT).text == "d"
    tool = ToolDefinition(name="f", path="tools[0]")
    assert "function" in template.render(msgspec.structs.replace(CHAT, tools=[tool])).text


def test_a_broken_template_file_is_named(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    (model / "chat_template.json").write_text("[")
    with pytest.raises(TokenizerFilesError, match=r"chat_template\.json"):
        find_templates(model, None)


def test_none(model: Path) -> None:
    assert find_templates(model, "none").default is None
    assert rendered(model, "none").startswith("<|im_start|>user\nHello.<|im_end|>")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b" " * (MAX_TEMPLATE_BYTES + 1), "larger than 1048576 bytes"),
    ],
    ids=["missing", "not UTF-8", "too large"],
)
def test_a_file_that_cannot_be_used(
    model: Path, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TokenizerFilesError, match=f"{file}.*{problem}"):
        find_templates(model, f"file:{file}")


def test_a_choice_that_is_neither_is_refused(model: Path) -> None:
    with pytest.raises(TokenizerFilesError, match="neither a file nor none"):
        find_templates(model, "chatml")
