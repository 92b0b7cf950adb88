"""Tools and the calls of earlier turns, as several dialects of upstreams write them. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from inference.protocol.generation import ToolCall, ToolDefinition
from inference.wire.errors import UnsupportedParameterError


def tool_of(tool: ToolDefinition, *, shows_strict: bool = True) -> dict[str, Any]:
    """A tool as OpenAI's chat has it; Ollama's has no word for ``strict``."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict and shows_strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments of an earlier call as an object. Raises ``UnsupportedParameterError`` for
    others, which engines of ours take."""
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise UnsupportedParameterError(
            "messages",
            f"the arguments of the call {call.id!r} are not a JSON object, and the model is served "
            "by an upstream that takes nothing else",
        )
    return arguments
