"""A schema in the keywords that are enforced: without what forbids nothing, and with OpenAPI's
``nullable`` as a type. One that requires itself without an end is refused.

    {"type": "string", "nullable": true}   {"type": ["string", "null"]}
    {"$ref": "#/…", "nullable": true}      {"anyOf": [{"$ref": "#/…"}, {"type": "null"}]}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inference.text.errors import SchemaError
from inference.text.schemas.places import (
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    STRUCTURE,
    Place,
    Steps,
    all_places,
    referenced,
)

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


ENDLESS = "the schema requires itself again without an end, so that no value can match it"


def check_ends(root: Any) -> None:
    """Raises ``SchemaError`` at a reference with which a schema requires itself again, so that no
    value can end. llguidance compiles such schemas, and an answer that enters one never ends."""
    places = list(all_places(root))
    if any(_has_own_root(place) for place in places):
        return
    ending: set[Steps] = set()
    num_ending = -1
    while len(ending) != num_ending:  # every schema that can end, given those that can
        num_ending = len(ending)
        for place in reversed(places):
            if place.steps not in ending and _can_end(root, place, ending):
                ending.add(place.steps)
    references = [
        (place.steps, target.steps)
        for place in places
        if place.steps not in ending and (target := referenced(root, place.schema)) is not None
    ]
    if references:  # one inside of what it leads to comes first
        steps, _ = min(references, key=lambda one: one[0][: len(one[1])] != one[1])
        raise SchemaError((*steps, "$ref"), ENDLESS)


def _has_own_root(place: Place) -> bool:
    schema = place.schema
    return bool(place.steps) and isinstance(schema, dict) and ("$id" in schema or "id" in schema)


def _can_end(root: Any, place: Place, ending: set[Steps]) -> bool:
    """Whether a value of finite length can match, as far as is known."""
    schema = place.schema
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return True
    target = referenced(root, schema)
    needed = [] if target is None else [target.steps]
    for keyword in ("allOf", "anyOf", "oneOf"):
        options = [(*place.steps, keyword, index) for index in range(_length(schema, keyword))]
        if keyword == "allOf":
            needed += options
        elif options and ending.isdisjoint(options):
            return False
    types = schema.get("type")
    if types == "object" or types == ["object"]:
        needed += _required(place)
    elif types == "array" or types == ["array"]:
        needed += _items(place)
    return ending.issuperset(needed)


def _required(place: Place) -> Iterator[Steps]:
    properties, required = place.schema.get("properties"), place.schema.get("required")
    others_are_schemas = isinstance(place.schema.get("additionalProperties"), dict)
    others_are_schemas = others_are_schemas and not place.schema.get("patternProperties")
    for name in required if isinstance(required, list) else ():
        if isinstance(properties, dict) and isinstance(name, str) and name in properties:
            yield (*place.steps, "properties", name)
        elif others_are_schemas:
            yield (*place.steps, "additionalProperties")


def _items(place: Place) -> Iterator[Steps]:
    least = place.schema.get("minItems")
    least = least if isinstance(least, int) else 0
    listed = "prefixItems" if "prefixItems" in place.schema else "items"
    num_listed = _length(place.schema, listed)
    yield from ((*place.steps, listed, index) for index in range(min(least, num_listed)))
    rest = "additionalItems" if listed == "items" and num_listed else "items"
    if least > num_listed and isinstance(place.schema.get(rest), dict):
        yield (*place.steps, rest)


def _length(schema: dict[str, Any], keyword: str) -> int:
    value = schema.get(keyword)
    return len(value) if isinstance(value, list) else 0
