"""Calls that are bare JSON, beside an answer that is JSON too.

One lexer reads both, and it would take a call's literal beginning for good where the answer only
begins alike. As JSON schemas with the same white space they differ at the first key that does.
"""

from __future__ import annotations

from typing import Any

from inference.protocol.generation import ToolDefinition
from inference.text.grammars.parts import json_part

ARGUMENTS_KEYS = {"llama3": "parameters"}
"""Formats whose calls stand without a marker, and what they call the arguments."""


def bare_call_part(tool: ToolDefinition, arguments_key: str) -> dict[str, Any]:
    """A grammar's part: one call of ``tool``. Arguments of a tool that is not strict are any
    object."""
    arguments: dict[str, Any] = {"type": "object"}
    if tool.strict and tool.parameters is not None:
        moved = rerooted(tool.parameters, f"#/properties/{arguments_key}")
        arguments = {**moved, "type": "object"}
    return json_part(
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments_key: arguments},
            "required": ["name", arguments_key],
            "additionalProperties": False,
        }
    )


def rerooted(schema: Any, root: str) -> Any:
    """``schema`` with references that start at ``root``, where it will stand; an identifier of its
    own would be where they start."""
    if isinstance(schema, list):
        return [rerooted(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value.removeprefix("#")
        if key == "$ref" and isinstance(value, str)
        else rerooted(value, root)
        for key, value in schema.items()
        if not (key in ("$id", "id") and isinstance(value, str))
    }
