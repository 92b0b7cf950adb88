"""Which template a model's chats are rendered by: its own, the operator's file, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.protocol.generation import ChatInput, ChatMessage
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


def test_the_models_own(model: Path) -> None:
    assert rendered(model, None) == "own: Hello."


def test_a_file_of_the_operator(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("mine: {{ messages[0].content }}")
    assert rendered(model, f"file:{file}") == "mine: Hello."


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


def test_what_is_neither(model: Path) -> None:
    with pytest.raises(TokenizerFilesError, match="neither a file nor none"):
        find_templates(model, "chatml")
