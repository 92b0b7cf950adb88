"""The tools of Anthropic's dialect and the choice among them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.wire.anthropic_fields import CACHE_CONTROL, kind_of, type_field
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError
from inference.wire.fields import (
    Field,
    array,
    flag,
    honoured,
    json_schema,
    neutral,
    object_of,
    only,
    refused,
    shown,
    table,
    text,
    wrong_type,
)

MAX_TOOLS = 1024
NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def tool_name(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if not NAME_PATTERN.fullmatch(value):
        raise InvalidRequestError(
            f"'{path}' must have 1 to 128 letters, digits, underscores and hyphens.", param=path
        )
    return value


TOOL_FIELDS = table(
    neutral("type", only("custom", reason="only custom tools"), "custom"),
    honoured("name", tool_name, "1 to 128 letters, digits, _ and -; each name once."),
    honoured("description", text(), "For the model."),
    honoured("input_schema", json_schema, "A JSON schema."),
    honoured("strict", flag, "true: the input follows the schema exactly, by grammar."),
    CACHE_CONTROL,
    neutral("eager_input_streaming", flag, "Inputs stream as they are generated, always."),
    neutral("defer_loading", only(False, reason="tools are not searched for"), "false"),
    neutral("allowed_callers", only(["direct"], reason="only the model calls"), '["direct"]'),
    refused("input_examples", "chat templates have no place for them; use the description"),
)
_read_tool = object_of(TOOL_FIELDS, required=("name", "input_schema"))


def _tool(value: Any, path: str) -> ToolDefinition:
    if isinstance(value, dict) and value.get("type") is not None:
        kind = kind_of(value, path)
        if kind != "custom":
            raise UnsupportedParameterError(
                f"{path}.type",
                f"'{shown(kind)}' is not a tool this server has; declare custom tools",
            )
    read = _read_tool(value, path)
    return ToolDefinition(
        name=read["name"],
        path=f"{path}.input_schema",
        description=read.get("description"),
        parameters=read["input_schema"],
        strict=read.get("strict", False),
    )


def tools(value: Any, path: str) -> list[ToolDefinition]:
    read: list[ToolDefinition] = array(_tool, MAX_TOOLS)(value, path)
    seen: set[str] = set()
    for index, tool in enumerate(read):
        if tool.name in seen:
            raise InvalidRequestError(
                f"'{path}[{index}].name' is there twice: '{tool.name}'.",
                param=f"{path}[{index}].name",
            )
        seen.add(tool.name)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True


_parallel = honoured("disable_parallel_tool_use", flag, "true: one call at most.")
CHOICE_FIELDS: dict[str, dict[str, Field]] = {
    "auto": table(type_field("auto"), _parallel),
    "any": table(type_field("any"), _parallel),
    "tool": table(type_field("tool"), _parallel, honoured("name", tool_name, "One of the tools.")),
    "none": table(type_field("none")),
}


def tool_choice(value: Any, path: str) -> Choice:
    kind = kind_of(value, path)
    if kind not in CHOICE_FIELDS:
        known = ", ".join(CHOICE_FIELDS)
        raise InvalidRequestError(f"'{path}.type' must be one of {known}.", param=f"{path}.type")
    required = ("name",) if kind == "tool" else ()
    read = object_of(CHOICE_FIELDS[kind], required=required)(value, path)
    parallel = not read.get("disable_parallel_tool_use", False)
    if kind in ("any", "tool"):
        required_choice = ToolChoice(mode="required", name=read.get("name"))
        return Choice(tool_choice=required_choice, parallel=parallel)
    return Choice(
        tool_choice=ToolChoice(mode="none" if kind == "none" else "auto"), parallel=parallel
    )


def check_choice(choice: ToolChoice, offered: list[ToolDefinition]) -> None:
    """Raises ``InvalidRequestError`` for a call that is required of tools that are not there."""
    if choice.mode != "required":
        return
    if not offered:
        raise InvalidRequestError("'tool_choice' asks for a call without 'tools'.", param="tools")
    if choice.name is not None and choice.name not in {tool.name for tool in offered}:
        raise InvalidRequestError(
            f"'tool_choice.name' is none of 'tools': '{choice.name}'.", param="tool_choice.name"
        )
