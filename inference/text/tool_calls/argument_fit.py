"""Arguments that were read as JSON, as far as the tool's schema asks for another writing of the
same value.

    "3" as an integer ─▶ 3      3 as a string ─▶ "3"      "[1]" as an array ─▶ [1]

What does not fit otherwise stays as the model wrote it: the client knows its tool, and answers the
model. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inference.text.tool_calls.argument_values import allowed_types, alternatives, as_json
from inference.text.tool_calls.json_scanner import compact_json, read_json


def fitted_json(written: str, schema: Mapping[str, Any]) -> str:
    """Fits an object, given as JSON text, to ``schema``. Text that fits is returned as it is.
    Raises ``ValueError`` for an object that names a key twice."""
    arguments = read_json(written)
    changed = fitted(arguments, schema)
    return written if changed is arguments else compact_json(changed)


def fitted(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same object where nothing is to be written otherwise."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return arguments
    changed = {
        key: found
        for key, value in arguments.items()
        if key in properties and (found := _fitted(value, properties[key], schema)) is not value
    }
    return {**arguments, **changed} if changed else arguments


def _fitted(value: Any, schema: object, root: Mapping[str, Any]) -> Any:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not (is_integer or isinstance(value, str)):
        return value
    types = {name for one in alternatives(schema, root) for name in allowed_types(one)}
    if is_integer:
        return str(value) if types == {"string"} else value
    found = value if "string" in types else json.loads(as_json(value, schema, root))
    return value if isinstance(found, str) else found
