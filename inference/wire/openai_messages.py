"""The turns of an OpenAI chat request, checked and turned into ``ChatMessage``.

A message's fields depend on its role, so there is one table for each. ``developer`` is OpenAI's
newer word for ``system`` and becomes that. Text parts are joined with a newline. Pure.
"""

from __future__ import annotations

from typing import Any, Literal

from inference.protocol.generation import ChatMessage
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
    VisionUnsupportedError,
)
from inference.wire.fields import (
    Field,
    honoured,
    neutral,
    only,
    read_fields,
    refused,
    shown,
    table,
    text,
    wrong_type,
)

MAX_NAME_CHARS = 256
PART_SEPARATOR = "\n"
IMAGE_PARTS = frozenset({"image_url", "input_image", "image"})

_string = text()
_name = honoured("name", text(MAX_NAME_CHARS, min_chars=1), "Handed to the chat template.")

TEXT_PART = table(
    honoured("type", only("text", reason="only text parts are read"), "text"),
    honoured("text", _string, "The text."),
    refused("prompt_cache_breakpoint", "every prefix is cached without it"),
)


def content(value: Any, path: str) -> str:
    """A string, or text parts joined with a newline."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    if not value:
        raise InvalidRequestError(f"'{path}' must not be empty.", param=path)
    parts = [_part_text(part, f"{path}[{index}]") for index, part in enumerate(value)]
    return PART_SEPARATOR.join(parts)


def _part_text(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise wrong_type(path, "an object", part)
    kind = part.get("type")
    if kind is None:
        raise MissingParameterError(f"{path}.type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind in IMAGE_PARTS:
        raise VisionUnsupportedError(path)
    if kind != "text":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{shown(kind)}' parts are not read, only text"
        )
    checked = read_fields(part, TEXT_PART, path=f"{path}.", required=("text",))
    return str(checked["text"])


_content = honoured("content", content, "A string or text parts.")
_role = honoured("role", _string, "system, developer, user, assistant or tool.")

MESSAGE_FIELDS: dict[str, dict[str, Field]] = {
    "system": table(_role, _content, _name),
    "developer": table(_role, _content, _name),
    "user": table(_role, _content, _name),
    "assistant": table(
        _role,
        _content,
        _name,
        neutral("refusal", only(reason="models here do not refuse in a field"), "null"),
        neutral("annotations", only([], reason="annotations are not read"), "[]"),
        neutral("tool_calls", only([], reason="tools are not offered yet"), "[]"),
        refused("function_call", "functions are not offered"),
        refused("audio", "audio is not read"),
    ),
    "tool": table(
        _role,
        _content,
        _name,
        honoured("tool_call_id", text(MAX_NAME_CHARS, min_chars=1), "Which call it answers."),
    ),
}
REQUIRED = {"tool": ("content", "tool_call_id")}
Role = Literal["system", "user", "assistant", "tool"]
INTERNAL_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def messages(value: Any, path: str) -> list[ChatMessage]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    if not value:
        raise InvalidRequestError(f"'{path}' must not be empty.", param=path)
    return [_message(item, f"{path}[{index}]") for index, item in enumerate(value)]


def _message(value: Any, path: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    role = _message_role(value.get("role"), f"{path}.role")
    checked = read_fields(
        value,
        MESSAGE_FIELDS[role],
        path=f"{path}.",
        required=REQUIRED.get(role, ("content",)),
    )
    return ChatMessage(
        role=INTERNAL_ROLES[role],
        content=checked["content"],
        name=checked.get("name"),
        tool_call_id=checked.get("tool_call_id"),
    )


def _message_role(value: Any, path: str) -> str:
    if value is None:
        raise MissingParameterError(path)
    role: str = _string(value, path)
    if role not in MESSAGE_FIELDS:
        known = ", ".join(MESSAGE_FIELDS)
        raise InvalidRequestError(f"'{path}' must be one of {known}.", param=path)
    return role
