"""A JSON schema as a tree: where other schemas stand inside it, and copies with one replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any] | bool
Steps = tuple[str | int, ...]

ONE_SCHEMA = frozenset({"items", "additionalItems", "additionalProperties"})
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
OPTIONS = frozenset({"anyOf", "oneOf"})
STRUCTURE = ONE_SCHEMA | SCHEMA_LISTS | SCHEMA_MAPS


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema and how it is reached from the root."""

    steps: Steps
    schema: Any

    def child(self, *steps: str | int) -> Place:
        schema = self.schema
        for step in steps:
            schema = schema[step]
        return Place((*self.steps, *steps), schema)


def subschemas(place: Place) -> Iterator[Place]:
    """The schemas right below it. What should hold schemas and does not is left out."""
    if not isinstance(place.schema, dict):
        return
    for keyword, value in place.schema.items():
        if keyword in SCHEMA_LISTS and isinstance(value, list):
            yield from (place.child(keyword, index) for index in range(len(value)))
        elif keyword in SCHEMA_MAPS and isinstance(value, dict):
            yield from (place.child(keyword, name) for name in value)
        elif keyword in ONE_SCHEMA:
            yield place.child(keyword)


def all_places(root: Any) -> Iterator[Place]:
    """Every subschema in the order of the text, each before those inside it."""
    pending = [Place((), root)]
    while pending:
        place = pending.pop()
        yield place
        pending += reversed(list(subschemas(place)))


def replaced(schema: Any, steps: Steps, replacement: Any) -> Any:
    """A copy of ``schema`` with ``replacement`` where ``steps`` lead."""
    if not steps:
        return replacement
    copied = schema.copy()
    copied[steps[0]] = replaced(schema[steps[0]], steps[1:], replacement)
    return copied


def opened(place: Place, children: Sequence[Place]) -> Place:
    """``place`` with ``children``, which are right below it, allowing everything; as one of several
    options nothing, or the others would not matter."""
    schema = place.schema.copy()
    for child in children:
        keyword, *inner = child.steps[len(place.steps) :]
        if not inner:
            schema[keyword] = True
            continue
        if schema[keyword] is place.schema[keyword]:
            schema[keyword] = schema[keyword].copy()
        schema[keyword][inner[0]] = keyword not in OPTIONS
    return Place(place.steps, schema)


def left_out(root: Any, steps: Steps) -> tuple[Any, Steps]:
    """A copy of ``root`` without the keyword or the schema that ``steps`` lead to or into, and the
    steps to that; all of ``root`` where it is neither."""
    place = Place((), root)
    for child in all_places(root):
        if len(child.steps) > len(place.steps) and steps[: len(child.steps)] == child.steps:
            place = child
    if len(steps) > len(place.steps) and isinstance(place.schema, dict):
        keyword = steps[len(place.steps)]
        others = {name: value for name, value in place.schema.items() if name != keyword}
        return replaced(root, place.steps, others), (*place.steps, keyword)
    return replaced(root, place.steps, {}), place.steps
