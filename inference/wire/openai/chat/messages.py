"""Converts the turns of an OpenAI chat request to ``ChatMessage``.

A message's fields depend on its role, so there is one table for each. ``developer`` is OpenAI's
newer word for ``system`` and becomes that. Text parts are joined with a newline; images keep their
places. Pure.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from inference.protocol.generation import ChatMessage
from inference.wire.common import fields as f
from inference.wire.common.parts import (
    DETAIL_NOTE,
    PART_SEPARATOR,
    Part,
    detail,
    image_url,
    joined_text,
    parts_with_images,
    with_detail,
)
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.openai.chat.tools import CACHE_CONTROL, MAX_CALL_ID_CHARS, tool_calls

MAX_NAME_CHARS = 256

_string = f.text()

_TYPE = f.honoured("type", _string, "Which kind of part.")
IMAGE_URL_FIELDS = f.table(
    f.required("url", image_url, "A data URI; an address only where the operator allows its host."),
    f.honoured("detail", detail, DETAIL_NOTE),
)
PART_FIELDS = {
    "text": f.table(
        _TYPE,
        f.required("text", _string, "The text."),
        f.neutral(
            "prompt_cache_breakpoint",
            f.only({"mode": "explicit"}, reason="only mode explicit, without a lifetime"),
            "Every prefix is cached, marked or not.",
        ),
        CACHE_CONTROL,
    ),
    "refusal": f.table(_TYPE, f.required("refusal", _string, "Why it would not answer.")),
    "image_url": f.table(
        _TYPE,
        f.required(
            "image_url",
            IMAGE_URL_FIELDS.read,
            "A PNG, JPEG, WebP, GIF or BMP, not animated.",
        ),
        CACHE_CONTROL,
    ),
}
"""The fields of each type of part. A part's content is in the field named as its type."""


def _parts(kinds: tuple[str, ...], value: Any, path: str) -> list[Part]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of parts", value)
    return [_part(part, f"{path}[{index}]", kinds) for index, part in enumerate(value)]


content = partial(_parts, ("text",))


def prediction_content(value: Any, path: str) -> str:
    return joined_text(content(value, path))


PREDICTION_FIELDS = f.table(
    f.required("type", f.one_of("content"), "content"),
    f.required("content", prediction_content, "A string or text parts."),
)


def _part(part: Any, path: str, kinds: tuple[str, ...]) -> Part:
    kind = f.kind_of(part, path)
    if kind not in kinds:
        raise UnsupportedParameterError(
            f"{path}.type", f"'{f.shown(kind)}' parts are not read here, only {' and '.join(kinds)}"
        )
    held = f.read_fields(part, PART_FIELDS[kind], path=f"{path}.")[kind]
    made: Part = with_detail(held["url"], held.get("detail")) if kind == "image_url" else held
    return made


_role = f.honoured("role", _string, "system, developer, user, assistant or tool.")
_content = f.required("content", content, "A string or text parts.")
_seen = f.required(
    "content", partial(_parts, ("text", "image_url")), "A string, or text and image parts."
)
_name = f.honoured("name", f.text(MAX_NAME_CHARS, min_chars=1), "Handed to the chat template.")
_reasoning = "What it thought; handed to the chat template."

_type = f.neutral(
    "type",
    f.only("text", "message", reason="a turn's kind is its role"),
    "text or message, as evaluation suites and the Responses API write it.",
)

_system = f.table(_role, _type, _content, _name, CACHE_CONTROL)
MESSAGE_FIELDS = {
    "system": _system,
    "developer": _system,
    "user": f.table(_role, _type, _seen, _name, CACHE_CONTROL),
    "assistant": f.table(
        _role,
        _type,
        f.honoured(
            "content",
            partial(_parts, ("text", "refusal")),
            "A string, text parts or refusal parts.",
        ),
        _name,
        f.honoured("refusal", _string, "Why it would not answer: part of its answer."),
        f.honoured("tool_calls", tool_calls, "What it called."),
        f.honoured("reasoning_content", _string, _reasoning),
        f.honoured("reasoning", _string, _reasoning),
        f.neutral("parsed", f.json_object, "The openai SDK's own reading of content."),
        f.neutral("annotations", f.array(f.only(reason="annotations are not read")), "[]"),
        f.neutral("reasoning_details", f.array(f.only(reason="use reasoning")), "[]"),
        f.neutral("provider_specific_fields", f.json_object, "litellm's notes on other servers."),
        f.refused("function_call", "functions are now called tools: use tool_calls"),
        f.refused("audio", "audio is not read"),
        CACHE_CONTROL,
    ),
    "tool": f.table(
        _role,
        _type,
        _seen,
        _name,
        f.required(
            "tool_call_id", f.text(MAX_CALL_ID_CHARS, min_chars=1), "Which call it answers."
        ),
        CACHE_CONTROL,
    ),
}


def messages(value: Any, path: str) -> list[ChatMessage]:
    if not isinstance(value, list):
        raise f.wrong_type(path, "an array", value)
    if not value:
        raise InvalidRequestError(f"'{path}' must not be empty.", param=path)
    read = [_message(item, f"{path}[{index}]") for index, item in enumerate(value)]
    for index, item in enumerate(value):
        # Zed sends a user's turn without parts behind a tool's result.
        is_result = item["role"] == "tool" or (index > 0 and value[index - 1]["role"] == "tool")
        if item.get("content") == [] and not is_result and not item.get("tool_calls"):
            param = f"{path}[{index}].content"
            raise InvalidRequestError(f"'{param}' must not be empty.", param=param)
    return read


def _message(value: Any, path: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise f.wrong_type(path, "an object", value)
    role = _message_role(value.get("role"), f"{path}.role")
    read = f.read_fields(value, MESSAGE_FIELDS[role], path=f"{path}.")
    if role == "assistant":
        return _assistant(read, path)
    return ChatMessage(
        role="system" if role == "developer" else role,
        content=joined_text(read["content"]),
        name=read.get("name"),
        tool_call_id=read.get("tool_call_id"),
        parts=parts_with_images(read["content"]),
    )


def _assistant(read: dict[str, Any], path: str) -> ChatMessage:
    texts = {"content": joined_text(read.get("content", [])), "refusal": read.get("refusal")}
    given = [text for text in texts.values() if text]
    calls = read.get("tool_calls", [])
    reasoning = _one_reasoning(read, path)
    if not calls and reasoning is None and "content" not in read and "refusal" not in read:
        raise MissingParameterError(f"{path}.content")
    return ChatMessage(
        role="assistant",
        content=PART_SEPARATOR.join(given) if given or not calls else None,
        name=read.get("name"),
        tool_calls=calls,
        reasoning=reasoning,
    )


def _one_reasoning(read: dict[str, Any], path: str) -> str | None:
    """Servers disagree on the field's name, so clients may send both; empty is none."""
    reasoning: str = read.get("reasoning_content", "")
    other: str = read.get("reasoning", "")
    if reasoning and other and reasoning != other:
        raise InvalidRequestError(
            f"'{path}.reasoning_content' and '{path}.reasoning' differ; give one of them.",
            param=f"{path}.reasoning",
        )
    return reasoning or other or None


_known_role = f.one_of(*MESSAGE_FIELDS)


def _message_role(value: Any, path: str) -> Any:
    if value is None:
        raise MissingParameterError(path)
    return _known_role(value, path)
