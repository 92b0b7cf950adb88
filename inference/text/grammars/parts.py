"""Grammars as llguidance takes them: a list of parts, each lark text or a JSON schema; the first is
where it starts. Knows no llguidance: a process that only writes grammars cannot compile one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inference.protocol.generation import ToolDefinition
from inference.text.errors import SchemaError
from inference.text.schemas.places import Schema

OUR_OPTIONS = "x-guidance"
OPTIONS = {"whitespace_pattern": r"( |\n {0,32})?"}
"""White space between JSON tokens: a space, or a new line with its indent. Bounded, because small
models else write white space until they are cut."""
TOO_DEEP = "the schema is nested too deeply"


def json_part(schema: Schema | None) -> dict[str, Any]:
    """JSON that ``schema`` allows, any object for ``None``."""
    if schema is None:
        schema = {"type": "object"}
    elif isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"json_schema": {**schema, OUR_OPTIONS: OPTIONS}}


def calls_part(lark: str) -> dict[str, Any]:
    return {"lark_grammar": lark}


def grammar_text(parts: Sequence[dict[str, Any]]) -> str:
    """Raises ``SchemaError`` for a schema that is nested too deeply to be written."""
    try:
        return json.dumps({"grammars": list(parts)})
    except RecursionError:
        raise SchemaError((), TOO_DEEP) from None


ARGUMENTS_KEYS = {"llama3": "parameters"}
"""Formats whose calls stand without a marker, and what they call the arguments."""


def bare_call_part(tool: ToolDefinition, arguments_key: str) -> dict[str, Any]:
    """A grammar's part: one call of ``tool`` as bare JSON, beside an answer that is JSON too.
    Arguments of a tool that is not strict are any object.

    One lexer reads both, and it would take a call's literal beginning for good where the answer
    only begins alike. As JSON schemas with the same white space they differ at the first key that
    does.
    """
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
