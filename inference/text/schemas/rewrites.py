"""A schema in the keywords that are enforced: without what forbids nothing, and with OpenAPI's
``nullable`` as a type.

    {"type": "string", "nullable": true}   {"type": ["string", "null"]}
    {"$ref": "#/…", "nullable": true}      {"anyOf": [{"$ref": "#/…"}, {"type": "null"}]}
"""

from __future__ import annotations

from typing import Any

from inference.text.schemas.places import ONE_SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS, STRUCTURE, Steps

VACUOUS: dict[str, tuple[Any, ...]] = {
    "propertyNames": (True, {}, {"type": "string"}),
    "uniqueItems": (False,),
    "nullable": (False,),
}
"""Keywords that are not enforced, with those of their values that forbid nothing; schema libraries
write them."""
REFERENCED = frozenset({"$defs", "definitions", "$schema", "$id", "id"})
"""They stay where they are when a schema becomes one option of two: references lead to them."""


def rewritten(schema: Any) -> Any:
    """A copy. ``nullable`` beside ``enum`` allows null only where the enum lists it, as OpenAPI
    has it."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            kept[keyword] = {name: rewritten(inner) for name, inner in value.items()}
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            kept[keyword] = [rewritten(inner) for inner in value]
        elif keyword in ONE_SCHEMA:
            kept[keyword] = rewritten(value)
        elif keyword not in VACUOUS:
            kept[keyword] = value
    if schema.get("nullable") is True:
        kept = (
            _or_null(kept)
            if _becomes_option(schema)
            else {**kept, "type": _with_null(kept["type"])}
        )
    if isinstance(kept.get("type"), list) and "number" in kept["type"]:
        # Every integer is a number; llguidance panics on some negative bounds of both.
        kept["type"] = [name for name in kept["type"] if name != "integer"]
    return kept


def original_steps(schema: Any, steps: Steps) -> Steps:
    """Returns the steps in ``schema`` to what ``steps`` lead to in ``rewritten(schema)``."""
    if _becomes_option(schema) and steps[:1] == ("anyOf",):
        return _steps_below(schema, steps[2:]) if steps[1:2] == (0,) else ()
    return _steps_below(schema, steps)


def _steps_below(schema: Any, steps: Steps) -> Steps:
    keyword = steps[0] if steps else None
    if keyword not in STRUCTURE:
        return steps
    is_listed = keyword in SCHEMA_LISTS and isinstance(schema[keyword], list)
    length = 2 if keyword in SCHEMA_MAPS or is_listed else 1
    if len(steps) <= length:
        return steps
    inner = schema
    for step in steps[:length]:
        inner = inner[step]
    return (*steps[:length], *original_steps(inner, steps[length:]))


def _becomes_option(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("nullable") is True and "type" not in schema


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    outside = {name: value for name, value in schema.items() if name in REFERENCED}
    inside = {name: value for name, value in schema.items() if name not in REFERENCED}
    return {**outside, "anyOf": [inside, {"type": "null"}]}


def _with_null(declared: Any) -> Any:
    types = declared if isinstance(declared, list) else [declared]
    return types if "null" in types else [*types, "null"]
