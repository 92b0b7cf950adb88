"""Options of Anthropic's dialect: cache marks, thinking, formats, tools and the choice among them.

Sources: https://docs.anthropic.com/en/api/messages, the types of the ``anthropic`` package. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.protocol.generation import OutputFormat, ToolChoice, ToolDefinition
from inference.wire import fields as f
from inference.wire.errors import (
    InvalidRequestError,
    ThreadUnsupportedError,
    UnsupportedParameterError,
)

MAX_TOKENS = 2**31 - 1
MIN_THINKING_TOKENS = 1024

Display = Literal["hidden", "omitted", "shown"]
"""Thinking blocks in the answer: none, without their text, or whole."""


def type_field(kind: str) -> f.Field:
    return f.required("type", f.only(kind, reason=f"only {kind}"), kind)


CACHE_CONTROL_FIELDS = f.table(
    type_field("ephemeral"),
    f.neutral("ttl", f.one_of("5m", "1h"), "5m, 1h; a prefix stays while there is room."),
    f.neutral("scope", f.text(64), "Whose cache; there is one."),
)
CACHE_CONTROL = f.neutral(
    "cache_control",
    CACHE_CONTROL_FIELDS.read,
    "Sent to upstreams of this dialect; here prefixes are cached by content, without marks.",
)


def cache_of(read: Mapping[str, Any]) -> str | None:
    """The time to live of a block's mark, empty where it names none; ``None``: it has no mark."""
    mark = read.get("cache_control")
    return None if mark is None else mark.get("ttl", "")


_NO_THREADS = "conversations are not kept here"


def _thread(_value: Any, path: str) -> Any:
    raise ThreadUnsupportedError(path, _NO_THREADS)


THREAD = f.Field("thread", f.Support.REFUSED, _thread, _NO_THREADS)

METADATA_FIELDS = f.table(
    f.honoured("user_id", f.text(4096), "The end user, recorded where the key may name one.")
)
DIAGNOSTICS_FIELDS = f.table(f.neutral("previous_message_id", f.text(256), "Not compared."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """``wanted`` is ``None`` where the client leaves it to the model."""

    display: Display = "hidden"
    wanted: bool | None = None
    is_adaptive: bool = False
    budget_tokens: int | None = None


_display = f.honoured("display", f.one_of("summarized", "omitted"), "summarized: shown whole.")
THINKING_FIELDS = {
    "enabled": f.table(
        type_field("enabled"),
        f.required(
            "budget_tokens",
            f.integer(MIN_THINKING_TOKENS, MAX_TOKENS),
            "At least 1024, less than max_tokens; the thinking block ends there.",
        ),
        _display,
    ),
    "adaptive": f.table(type_field("adaptive"), _display),
    "disabled": f.table(type_field("disabled")),
}


def thinking(value: Any, path: str) -> Thinking:
    kind = f.kind_of(value, path)
    if kind not in THINKING_FIELDS:
        known = ", ".join(THINKING_FIELDS)
        raise UnsupportedParameterError(f"{path}.type", f"'{f.shown(kind)}' is none of {known}")
    read = THINKING_FIELDS[kind].read(value, path)
    if kind == "disabled":
        return Thinking()
    return Thinking(
        display="omitted" if read.get("display") == "omitted" else "shown",
        wanted=True if kind == "enabled" else None,
        is_adaptive=kind == "adaptive",
        budget_tokens=read.get("budget_tokens"),
    )


JSON_FORMAT_FIELDS = f.table(
    type_field("json_schema"),
    f.required("schema", f.json_schema, "What the answer's JSON must be."),
)


def output_format(value: Any, path: str) -> OutputFormat:
    read = JSON_FORMAT_FIELDS.read(value, path)
    return OutputFormat(path=f"{path}.schema", schema=read["schema"])


OUTPUT_CONFIG_FIELDS = f.table(
    f.honoured(
        "effort",
        f.one_of("low", "medium", "high", "xhigh", "max"),
        "Handed to the chat template as reasoning_effort.",
    ),
    f.honoured("format", output_format, "type json_schema with its schema."),
    f.refused("task_budget", "budgets over several requests are not kept"),
)


_keeps_all = f.only("all", {"type": "all"}, reason="only all: nothing is cleared here")
CLEAR_THINKING_FIELDS = f.table(
    type_field("clear_thinking_20251015"), f.neutral("keep", _keeps_all, "all")
)


def _context_edit(value: Any, path: str) -> dict[str, Any]:
    kind = f.kind_of(value, path)
    if kind != "clear_thinking_20251015":
        raise UnsupportedParameterError(
            f"{path}.type", f"'{f.shown(kind)}' is not done; contexts are never edited here"
        )
    return CLEAR_THINKING_FIELDS.read(value, path)


CONTEXT_MANAGEMENT_FIELDS = f.table(
    f.neutral(
        "edits", f.array(_context_edit), "Those of type clear_thinking_20251015 that keep all."
    )
)


MAX_TOOLS = 1024

tool_name = f.spelled(
    re.compile(r"[a-zA-Z0-9_-]{1,128}"), "1 to 128 letters, digits, underscores and hyphens"
)

TOOL_FIELDS = f.table(
    f.fixed("type", "custom", "only custom tools"),
    f.required("name", tool_name, "1 to 128 letters, digits, _ and -; each name once."),
    f.honoured("description", f.text(), "For the model."),
    f.required("input_schema", f.json_schema, "A JSON schema."),
    f.honoured("strict", f.flag, "true: the input follows the schema exactly, by grammar."),
    CACHE_CONTROL,
    f.neutral("eager_input_streaming", f.flag, "Inputs stream as they are generated, always."),
    f.honoured("defer_loading", f.flag, "true: not offered until a tool_reference names it."),
    f.fixed("allowed_callers", ["direct"], "only the model calls"),
    f.refused("input_examples", "chat templates have no place for them; use the description"),
)


@dataclass(frozen=True, slots=True)
class Tool:
    definition: ToolDefinition
    is_deferred: bool
    cache: str | None


@dataclass(frozen=True, slots=True)
class ToolReference:
    """A tool's result that makes a deferred tool available. ``path`` is the name's."""

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
    read = TOOL_FIELDS.read(value, path)
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
CHOICE_FIELDS = {
    "auto": f.table(type_field("auto"), _parallel),
    "any": f.table(type_field("any"), _parallel),
    "tool": f.table(
        type_field("tool"), _parallel, f.required("name", tool_name, "One of the tools.")
    ),
    "none": f.table(type_field("none")),
}


def tool_choice(value: Any, path: str) -> Choice:
    kind = f.kind_of(value, path)
    if kind not in CHOICE_FIELDS:
        known = ", ".join(CHOICE_FIELDS)
        raise InvalidRequestError(f"'{path}.type' must be one of {known}.", param=f"{path}.type")
    read = CHOICE_FIELDS[kind].read(value, path)
    parallel = not read.get("disable_parallel_tool_use", False)
    if kind in ("any", "tool"):
        required_choice = ToolChoice(mode="required", name=read.get("name"))
        return Choice(tool_choice=required_choice, parallel=parallel)
    return Choice(
        tool_choice=ToolChoice(mode="none" if kind == "none" else "auto"), parallel=parallel
    )


def check_choice(choice: ToolChoice, offered: list[ToolDefinition]) -> None:
    """Raises ``InvalidRequestError`` for a required call of a missing tool."""
    if choice.mode != "required":
        return
    if not offered:
        raise InvalidRequestError("'tool_choice' asks for a call without 'tools'.", param="tools")
    if choice.name is not None and choice.name not in {tool.name for tool in offered}:
        raise InvalidRequestError(
            f"'tool_choice.name' is none of the tools offered: '{choice.name}'.",
            param="tool_choice.name",
        )
