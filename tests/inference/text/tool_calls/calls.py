"""Tools that tests offer, and a parser's parts in a shape that is easy to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from inference.protocol.generation import ToolDefinition
from inference.text.answers.parts import CallArguments, CallStarted, Part, TextPart
from inference.text.tool_calls.call_parser import CallFormat


def tool(
    name: str,
    properties: dict[str, Any],
    *,
    required: Sequence[str] = (),
    strict: bool = False,
    defs: dict[str, Any] | None = None,
) -> ToolDefinition:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **({} if defs is None else {"$defs": defs}),
    }
    return ToolDefinition(name=name, path=f"tools.{name}", parameters=parameters, strict=strict)


TOOLS = [
    tool(
        "get_weather",
        {"city": {"type": "string"}, "days": {"type": "integer"}},
        required=["city"],
    ),
    tool("bash", {"command": {"type": "string"}}, required=["command"]),
    tool("create_user", {"name": {"type": "string"}, "age": {"type": "integer"}}),
    tool(
        "write_file",
        {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "mode": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object"},
        },
        required=["path", "content"],
    ),
    ToolDefinition(name="now", path="tools.now"),
]

Call = tuple[str, str]
Merged = list[str | Call]
"""Texts, and calls as name and arguments, in order; neighbours of a kind are one."""


def parts_of(
    tool_format: CallFormat, chunks: Iterable[str], tools: Sequence[ToolDefinition] = TOOLS
) -> list[Part]:
    parser = tool_format.parser(tools)
    parts = [part for chunk in chunks for part in parser.feed(chunk)]
    return [*parts, *parser.flush()]


def merged(parts: Iterable[Part]) -> Merged:
    """Fails when arguments come outside of a call, or do not make up one JSON object."""
    merged: Merged = []
    is_in_call = False
    for part in parts:
        match part:
            case TextPart(text=text):
                assert text
                is_in_call = False
                if merged and isinstance(merged[-1], str):
                    merged[-1] += text
                else:
                    merged.append(text)
            case CallStarted(name=name):
                is_in_call = True
                merged.append((name, ""))
            case CallArguments(fragment=fragment):
                assert fragment
                assert is_in_call
                name, arguments = merged[-1]
                merged[-1] = (name, arguments + fragment)
    for one in merged:
        if not isinstance(one, str):
            assert isinstance(json.loads(one[1]), dict), one
    return merged


def read(tool_format: CallFormat, text: str, tools: Sequence[ToolDefinition] = TOOLS) -> Merged:
    return merged(parts_of(tool_format, [text], tools))


def read_by_grammar(
    tool_format: CallFormat, text: str, tools: Sequence[ToolDefinition] = TOOLS
) -> Merged:
    """``read`` of an answer that a grammar has held to calls."""
    parser = tool_format.parser(tools)
    parser.streams_arguments = True
    return merged([*parser.feed(text), *parser.flush()])
