"""Tools in OpenAI's chat dialect: definitions, the choice among them, and earlier calls.

Only function tools: custom tools, which take free text, are refused by name. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from inference.protocol.generation import ToolCall, ToolChoice, ToolDefinition
from inference.wire.common import fields as f
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError

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
_TYPE = f.required("type", f.text(), "function")


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
    _TYPE,
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
    """Raises ``InvalidRequestError``."""
    seen: set[str] = set()
    for name, place in named:
        if name in seen:
            raise InvalidRequestError(f"'{path}' has two {kind} named '{name}'.", param=place)
        seen.add(name)


NAMED_FIELDS = f.table(
    _TYPE,
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
    """A checked ``tool_choice``: the mode, and the permitted functions (``None``: all)."""

    choice: ToolChoice
    allowed: list[str] | None = None


FREELY = Choosing(ToolChoice())


def tool_choice(value: Any, path: str) -> Choosing:
    if isinstance(value, str):
        mode = f.one_of("auto", "none", "required")(value, path)
        return Choosing(ToolChoice(mode=cast(Literal["auto", "none", "required"], mode)))
    if not isinstance(value, dict):
        raise f.wrong_type(path, "a string or an object", value)
    if value.get("type") == "allowed_tools":
        allowed = ALLOWED_TOOLS_FIELDS.read(value, path)["allowed_tools"]
        names = [tool["function"]["name"] for tool in allowed["tools"]]
        return Choosing(ToolChoice(mode=allowed["mode"]), names)
    named = _named(value, path)
    return Choosing(ToolChoice(mode="required", name=named["function"]["name"]))


def chosen_tools(
    given: list[ToolDefinition], choosing: Choosing
) -> tuple[list[ToolDefinition], ToolChoice]:
    """The functions on offer and how the model chooses among them. The model does not see functions
    that may not be called."""
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
    replace(_TYPE, is_required=False),
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
