"""Tools and the calls of earlier turns, as several dialects of upstreams write them. Pure."""

from __future__ import annotations

import json
from typing import Any

import orjson

from inference.protocol.generation import ToolCall, ToolDefinition


def tool_of(tool: ToolDefinition, *, shows_strict: bool = True) -> dict[str, Any]:
    """A tool as OpenAI's chat has it; Ollama's has no word for ``strict``."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict and shows_strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def arguments_of(call: ToolCall) -> orjson.Fragment:
    """The arguments of an earlier call as an object, whose numbers may be of any size."""
    return orjson.Fragment(json.dumps(call.arguments_object, ensure_ascii=False))
