"""Finds a model's chat template.

    the operator's file, or none at all
    > chat_template.jinja > chat_template.json > tokenizer_config.json

A GGUF's load writes its template into tokenizer_config.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inference.protocol.load import NO_TEMPLATE, TEMPLATE_FILE
from inference.text.errors import TokenizerFilesError
from inference.text.tokenizer import read_json_object

MAX_TEMPLATE_BYTES = 1024**2
"""Ten times the largest of published models."""


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """``tool_use`` is the second template of models that publish one for chats with tools."""

    default: str | None
    tool_use: str | None = None

    @property
    def for_tools(self) -> str | None:
        source = self.tool_use or self.default
        return source if source is not None and "tools" in source else None


def find_templates(directory: Path, choice: str | None) -> TemplateSources:
    """``choice``: ``LoadSpec.chat_template``. Raises ``TokenizerFilesError``."""
    if choice == NO_TEMPLATE:
        return TemplateSources(None)
    if choice is not None:
        return TemplateSources(_operators_file(choice))
    jinja_file = directory / "chat_template.jinja"
    if jinja_file.is_file():
        return TemplateSources(jinja_file.read_text(encoding="utf-8"), _tool_use_file(directory))
    for name in ("chat_template.json", "tokenizer_config.json"):
        declared = read_json_object(directory / name).get("chat_template")
        if declared is not None:
            return _declared_templates(declared)
    return TemplateSources(None)


def _operators_file(choice: str) -> str:
    named = TEMPLATE_FILE.fullmatch(choice)
    if named is None:
        raise TokenizerFilesError(f"chat_template {choice!r} is neither a file nor {NO_TEMPLATE}")
    path = Path(named["path"])
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(content) > MAX_TEMPLATE_BYTES:
            raise TokenizerFilesError(
                f"the chat template {path} is larger than {MAX_TEMPLATE_BYTES} bytes"
            )
        return content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerFilesError(f"the chat template {path} cannot be read: {error}") from error


def _tool_use_file(directory: Path) -> str | None:
    """transformers saves it there beside a chat_template.jinja."""
    path = directory / "additional_chat_templates" / "tool_use.jinja"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _declared_templates(declared: object) -> TemplateSources:
    """``declared`` is a string, or a list of {name, template}."""
    if isinstance(declared, str):
        return TemplateSources(declared)
    named = {
        entry["name"]: entry["template"]
        for entry in (declared if isinstance(declared, list) else [])
        if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
    }
    return TemplateSources(named.get("default"), named.get("tool_use"))
