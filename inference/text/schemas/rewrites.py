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
    """Raises ``SchemaError`` at the reference with which a schema requires itself again, so that no
    value can end.

        every subschema ─▶ can it end, given those that can? ─▶ again until none is added

    llguidance compiles such schemas, and an answer that enters one never ends.
    """
    places = {place.steps: place for place in all_places(root)}
    if any(_has_own_root(place) for place in places.values()):
        return
    if not any(_target(root, place) for place in places.values()):
        return
    ending = _ending(root, places)
    if (endless := next((steps for steps in places if steps not in ending), None)) is not None:
        raise SchemaError(_closing_reference(root, places, ending, endless), ENDLESS)


def _has_own_root(place: Place) -> bool:
    schema = place.schema
    return bool(place.steps) and isinstance(schema, dict) and ("$id" in schema or "id" in schema)


def _ending(root: Any, places: dict[Steps, Place]) -> set[Steps]:
    """The steps of all subschemas that a value of finite length can match."""
    ending: set[Steps] = set()
    waiting = list(reversed(places))  # innermost first
    num_waiting = -1
    while len(waiting) != num_waiting:
        num_waiting, waited, waiting = len(waiting), waiting, []
        for steps in waited:
            is_ending = next(_missing(root, places[steps], ending), None) is None
            (ending.add if is_ending else waiting.append)(steps)
    return ending


def _target(root: Any, place: Place) -> list[Steps]:
    target = referenced(root, place.schema)
    return [] if target is None else [target.steps]


def _missing(root: Any, place: Place, ending: set[Steps]) -> Iterator[Steps]:
    """Parts of a value that would have to end first; none where a value can end."""
    schema = place.schema
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return
    yield from (steps for steps in _target(root, place) if steps not in ending)
    for keyword in ("allOf", "anyOf", "oneOf"):
        options = [(*place.steps, keyword, index) for index in range(_length(schema, keyword))]
        unmet = [steps for steps in options if steps not in ending]
        if keyword == "allOf" or len(unmet) == len(options):
            yield from unmet
    types = schema.get("type")
    if types == "object" or types == ["object"]:
        yield from (steps for steps in _required(place) if steps not in ending)
    elif types == "array" or types == ["array"]:
        yield from (steps for steps in _items(place) if steps not in ending)


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


def _closing_reference(
    root: Any, places: dict[Steps, Place], ending: set[Steps], steps: Steps
) -> Steps:
    """The last reference on the way from missing part to missing part, from ``steps`` on until one
    was met before."""
    seen: set[Steps] = set()
    reference = steps
    while steps not in seen:
        seen.add(steps)
        missing = next(_missing(root, places[steps], ending))
        if missing in _target(root, places[steps]):
            reference = (*steps, "$ref")
        steps = missing
    return reference
