"""The tools of an OpenAI chat request, the choice among them, and its turns as ``ChatMessage``.

``developer`` is OpenAI's newer word for ``system``. Custom tools (free text) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from inference.protocol.generation import ChatMessage, ToolCall, ToolChoice, ToolDefinition
from inference.wire import fields as f
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.images import DETAIL_NOTE, ImageFile, detail, image_url, with_detail
from inference.wire.parts import PART_SEPARATOR, Part, joined_text, parts_with_images, read_parts

MAX_NAME_CHARS = 256
MAX_CALL_ID_CHARS = 256
MAX_CALL_INDEX = 2**31 - 1

_string = f.text()

CACHE_CONTROL_FIELDS = f.table(
    replace(
        f.fixed("type", "ephemeral", "only ephemeral"),
        is_required=True,
    ),
    f.fixed("ttl", "5m", "only 5m, the default"),
)
CACHE_CONTROL = f.neutral(
    "cache_control",
    CACHE_CONTROL_FIELDS.read,
    "Every prefix is cached, marked or not.",
)
"""Anthropic's mark, which opencode and litellm put on messages, parts, tools and calls."""

tool_name = f.spelled(
    re.compile(r"[A-Za-z0-9_.-]{1,128}"),
    "1 to 128 letters, digits, dots, underscores or dashes",
)
_FUNCTION_TYPE = f.required("type", f.text(), "function")


def _function_object(fields: f.Table) -> f.Check[Any]:
    def checked(value: Any, path: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise UnsupportedParameterError(
                f"{path}.type", f"'{f.shown(kind)}' tools are not offered, only functions"
            )
        return fields.read(value, path)

    return checked


FUNCTION_FIELDS = f.table(
    f.required("name", tool_name, "What the model calls it."),
    f.honoured("description", _string, "Handed to the chat template."),
    f.honoured("parameters", f.json_schema, "A JSON schema of the arguments."),
    f.honoured("strict", f.flag, "The arguments follow the schema exactly."),
)
TOOL_FIELDS = f.table(
    _FUNCTION_TYPE,
    f.required("function", FUNCTION_FIELDS.read, "The function."),
    CACHE_CONTROL,
)
_tools = f.array(_function_object(TOOL_FIELDS))


def tools(value: Any, path: str) -> list[ToolDefinition]:
    functions = [tool["function"] for tool in _tools(value, path)]
    places = [f"{path}[{index}].function.name" for index in range(len(functions))]
    names = [function["name"] for function in functions]
    refuse_doubles(zip(names, places, strict=True), "functions", path)
    return [
        ToolDefinition(path=f"{path}[{index}].function.parameters", **function)
        for index, function in enumerate(functions)
    ]


def refuse_doubles(named: Iterable[tuple[str, str]], kind: str, path: str) -> None:
    seen: set[str] = set()
    for name, place in named:
        if name in seen:
            raise InvalidRequestError(f"'{path}' has two {kind} named '{name}'.", param=place)
        seen.add(name)


NAMED_FIELDS = f.table(
    _FUNCTION_TYPE,
    f.required(
        "function",
        f.table(f.required("name", _string, "Its name.")).read,
        "Which function.",
    ),
)
_named = _function_object(NAMED_FIELDS)
ALLOWED_FIELDS = f.table(
    f.required("mode", f.one_of("auto", "required"), "auto or required."),
    f.required("tools", f.array(_named, min_items=1), "Which functions."),
)
ALLOWED_TOOLS_FIELDS = f.table(
    f.required("type", f.one_of("allowed_tools"), "allowed_tools"),
    f.required(
        "allowed_tools",
        ALLOWED_FIELDS.read,
        "The functions to choose among; others are not shown to the model.",
    ),
)


@dataclass(frozen=True, slots=True)
class Choosing:
    """``allowed``: ``None`` is all."""

    choice: ToolChoice
    allowed: list[str] | None = None
    given: Any = "auto"


FREELY = Choosing(ToolChoice())


def any_tool(value: str, path: str) -> Choosing:
    mode = cast(Literal["auto", "none", "required"], _any_mode(value, path))
    return Choosing(ToolChoice(mode=mode), given=value)


_any_mode = f.one_of("auto", "none", "required")


def tool_choice(value: Any, path: str) -> Choosing:
    if isinstance(value, str):
        return any_tool(value, path)
    if not isinstance(value, dict):
        raise f.wrong_type(path, "a string or an object", value)
    if value.get("type") == "allowed_tools":
        allowed = ALLOWED_TOOLS_FIELDS.read(value, path)["allowed_tools"]
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        return Choosing(ToolChoice(mode=allowed["mode"]), names)
    named = _named(value, path)
    return Choosing(ToolChoice(mode="required", name=named["function"]["name"]))


PARALLEL_TOOL_CALLS = f.honoured(
    "parallel_tool_calls", f.flag, "false: at most one call in an answer."
)


def chosen_tools(
    given: list[ToolDefinition], choosing: Choosing
) -> tuple[list[ToolDefinition], ToolChoice]:
    """Hides functions from the model that may not be called."""
    choice = choosing.choice
    known = {tool.name: tool for tool in given}
    for name in [choice.name] if choice.name is not None else choosing.allowed or ():
        if name not in known:
            raise InvalidRequestError(
                f"'tool_choice' names a function that is not in 'tools': '{f.shown(name)}'.",
                param="tool_choice",
            )
    if choice.mode == "required" and not given:
        raise InvalidRequestError(
            "'tool_choice' is 'required' but 'tools' offers none.", param="tool_choice"
        )
    if choosing.allowed is not None:
        given = [known[name] for name in dict.fromkeys(choosing.allowed)]
    return given, choice


CALLED_FIELDS = f.table(
    f.required("name", f.text(256, min_chars=1), "Which function."),
    f.required("arguments", _string, "JSON text, as the model gave it."),
    f.neutral("parsed_arguments", f.json_object, "The openai SDK's own reading of arguments."),
)
CALL_FIELDS = f.table(
    f.required("id", f.text(MAX_CALL_ID_CHARS, min_chars=1), "Its result names it."),
    replace(_FUNCTION_TYPE, is_required=False),
    f.required("function", CALLED_FIELDS.read, "The name and arguments of the call."),
    f.neutral("index", f.integer(0, MAX_CALL_INDEX), "Left over from a stream."),
    CACHE_CONTROL,
)
_calls = f.array(_function_object(CALL_FIELDS))


def tool_calls(value: Any, path: str) -> list[ToolCall]:
    return [
        ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=call["function"]["arguments"],
        )
        for call in _calls(value, path)
    ]


_TYPE = f.honoured("type", _string, "Which kind of part.")
IMAGE_URL_FIELDS = f.table(
    f.required("url", image_url, "A data URI; an address only where the operator allows its host."),
    f.honoured("detail", detail, DETAIL_NOTE),
)


def _image(value: Any, path: str) -> ImageFile:
    read = IMAGE_URL_FIELDS.read(value, path)
    return with_detail(read["url"], read.get("detail"))


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
            _image,
            "A PNG, JPEG, WebP, GIF or BMP, not animated.",
        ),
        CACHE_CONTROL,
    ),
}


def _content(*kinds: str) -> f.Check[list[Part]]:
    tables = {kind: PART_FIELDS[kind] for kind in kinds}
    only = " and ".join(kinds)
    return lambda value, path: read_parts(
        value, path, tables, lambda kind: f"'{kind}' parts are not read here, only {only}"
    )


content = _content("text")


def prediction_content(value: Any, path: str) -> str:
    return joined_text(content(value, path))


PREDICTION_FIELDS = f.table(
    f.required("type", f.one_of("content"), "content"),
    f.required("content", prediction_content, "A string or text parts."),
)


_role = f.honoured("role", _string, "system, developer, user, assistant or tool.")
_heard = f.required("content", content, "A string or text parts.")
_seen = f.required("content", _content("text", "image_url"), "A string, or text and image parts.")
_name = f.honoured("name", f.text(MAX_NAME_CHARS, min_chars=1), "Handed to the chat template.")
_reasoning = "What it thought; handed to the chat template."

_type = f.neutral(
    "type",
    f.only("text", "message", reason="a turn's kind is its role"),
    "text or message, as evaluation suites and the Responses API write it.",
)

_system = f.table(_role, _type, _heard, _name, CACHE_CONTROL)
MESSAGE_FIELDS = {
    "system": _system,
    "developer": _system,
    "user": f.table(_role, _type, _seen, _name, CACHE_CONTROL),
    "assistant": f.table(
        _role,
        _type,
        f.honoured(
            "content",
            _content("text", "refusal"),
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
    """Servers disagree on the field's name, so clients may send both."""
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
