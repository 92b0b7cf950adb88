"""The tools of Anthropic's dialect and the choice among them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.wire.anthropic.fields import CACHE_CONTROL, cache_of, type_field
from inference.wire.common import fields as f
from inference.wire.errors import InvalidRequestError, UnsupportedParameterError

MAX_TOOLS = 1024

tool_name = f.spelled(
    re.compile(r"[a-zA-Z0-9_-]{1,128}"), "1 to 128 letters, digits, underscores and hyphens"
)

TOOL_FIELDS = f.table(
    f.neutral("type", f.only("custom", reason="only custom tools"), "custom"),
    f.honoured("name", tool_name, "1 to 128 letters, digits, _ and -; each name once."),
    f.honoured("description", f.text(), "For the model."),
    f.honoured("input_schema", f.json_schema, "A JSON schema."),
    f.honoured("strict", f.flag, "true: the input follows the schema exactly, by grammar."),
    CACHE_CONTROL,
    f.neutral("eager_input_streaming", f.flag, "Inputs stream as they are generated, always."),
    f.honoured("defer_loading", f.flag, "true: not offered until a tool_reference names it."),
    f.neutral("allowed_callers", f.only(["direct"], reason="only the model calls"), '["direct"]'),
    f.refused("input_examples", "chat templates have no place for them; use the description"),
)
_read_tool = f.object_of(TOOL_FIELDS, required=("name", "input_schema"))


@dataclass(frozen=True, slots=True)
class Tool:
    definition: ToolDefinition
    is_deferred: bool
    cache: str | None


@dataclass(frozen=True, slots=True)
class ToolReference:
    """A tool's result that makes a deferred tool known. ``path`` is where the name stood."""

    name: str
    path: str


def _tool(value: Any, path: str) -> Tool:
    if isinstance(value, dict) and value.get("type") is not None:
        kind = f.kind_of(value, path)
        if kind != "custom":
            raise UnsupportedParameterError(
                f"{path}.type",
                f"'{f.shown(kind)}' is not a tool this server has; declare custom tools",
            )
    read = _read_tool(value, path)
    definition = ToolDefinition(
        name=read["name"],
        path=f"{path}.input_schema",
        description=read.get("description"),
        parameters=read["input_schema"],
        strict=read.get("strict", False),
    )
    return Tool(definition, is_deferred=read.get("defer_loading", False), cache=cache_of(read))


def tools(value: Any, path: str) -> list[Tool]:
    read: list[Tool] = f.array(_tool, MAX_TOOLS)(value, path)
    seen: set[str] = set()
    for index, tool in enumerate(read):
        name = tool.definition.name
        if name in seen:
            raise InvalidRequestError(
                f"'{path}[{index}].name' is there twice: '{name}'.", param=f"{path}[{index}].name"
            )
        seen.add(name)
    return read


def offered_tools(
    declared: Iterable[Tool], references: Iterable[ToolReference]
) -> list[ToolDefinition]:
    """The tools that the prompt describes. Raises ``InvalidRequestError`` for a reference to a tool
    that is not declared."""
    by_name = {tool.definition.name: tool for tool in declared}
    referenced = set()
    for reference in references:
        if reference.name not in by_name:
            raise InvalidRequestError(
                f"'{reference.path}' is none of 'tools': '{reference.name}'.", param=reference.path
            )
        referenced.add(reference.name)
    return [
        tool.definition
        for name, tool in by_name.items()
        if not tool.is_deferred or name in referenced
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True


_parallel = f.honoured("disable_parallel_tool_use", f.flag, "true: one call at most.")
CHOICE_FIELDS: dict[str, dict[str, f.Field]] = {
    "auto": f.table(type_field("auto"), _parallel),
    "any": f.table(type_field("any"), _parallel),
    "tool": f.table(
        type_field("tool"), _parallel, f.honoured("name", tool_name, "One of the tools.")
    ),
    "none": f.table(type_field("none")),
}


def tool_choice(value: Any, path: str) -> Choice:
    kind = f.kind_of(value, path)
    if kind not in CHOICE_FIELDS:
        known = ", ".join(CHOICE_FIELDS)
        raise InvalidRequestError(f"'{path}.type' must be one of {known}.", param=f"{path}.type")
    required = ("name",) if kind == "tool" else ()
    read = f.object_of(CHOICE_FIELDS[kind], required=required)(value, path)
    parallel = not read.get("disable_parallel_tool_use", False)
    if kind in ("any", "tool"):
        required_choice = ToolChoice(mode="required", name=read.get("name"))
        return Choice(tool_choice=required_choice, parallel=parallel)
    return Choice(
        tool_choice=ToolChoice(mode="none" if kind == "none" else "auto"), parallel=parallel
    )


def check_choice(choice: ToolChoice, offered: list[ToolDefinition]) -> None:
    if choice.mode != "required":
        return
    if not offered:
        raise InvalidRequestError("'tool_choice' asks for a call without 'tools'.", param="tools")
    if choice.name is not None and choice.name not in {tool.name for tool in offered}:
        raise InvalidRequestError(
            f"'tool_choice.name' is none of the tools offered: '{choice.name}'.",
            param="tool_choice.name",
        )
