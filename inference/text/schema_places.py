"""A JSON schema as a tree: its subschemas, the targets of its references, and copies with one
replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any] | bool
Steps = tuple[str | int, ...]

ONE_SCHEMA = frozenset({"items", "additionalItems", "additionalProperties"})
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
STRUCTURE = ONE_SCHEMA | SCHEMA_LISTS | SCHEMA_MAPS


@dataclass(frozen=True, slots=True)
class Place:
    steps: Steps
    schema: Any

    def child(self, *steps: str | int) -> Place:
        schema = self.schema
        for step in steps:
            schema = schema[step]
        return Place((*self.steps, *steps), schema)


def subschemas(place: Place) -> Iterator[Place]:
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
    """Yields each place before those inside it."""
    pending = [Place((), root)]
    while pending:
        place = pending.pop()
        yield place
        pending += reversed(list(subschemas(place)))


def replaced(schema: Any, steps: Steps, replacement: Any) -> Any:
    if not steps:
        return replacement
    copied = schema.copy()
    copied[steps[0]] = replaced(schema[steps[0]], steps[1:], replacement)
    return copied


def left_out(root: Any, steps: Steps) -> tuple[Any, Steps]:
    """Returns a copy without the keyword or schema at or around ``steps``, and its steps."""
    place = Place((), root)
    for child in all_places(root):
        if len(child.steps) > len(place.steps) and steps[: len(child.steps)] == child.steps:
            place = child
    if len(steps) > len(place.steps) and isinstance(place.schema, dict):
        keyword = steps[len(place.steps)]
        others = {name: value for name, value in place.schema.items() if name != keyword}
        return replaced(root, place.steps, others), (*place.steps, keyword)
    return replaced(root, place.steps, {}), place.steps


def referenced(root: Any, schema: Any) -> Place | None:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    pointer = [
        step.replace("~1", "/").replace("~0", "~") for step in unquote(reference).split("/")[1:]
    ]
    place: Place | None = Place((), root)
    while pointer and place is not None:
        place = _child(place, pointer)
    return place


def _child(place: Place, pointer: list[str]) -> Place | None:
    """Removes the steps of ``pointer`` that it follows."""
    keyword = pointer.pop(0)
    value = place.schema.get(keyword) if isinstance(place.schema, dict) else None
    if keyword in SCHEMA_MAPS and isinstance(value, dict):
        return place.child(keyword, name) if pointer and (name := pointer.pop(0)) in value else None
    if keyword in SCHEMA_LISTS and isinstance(value, list):
        index = pointer.pop(0) if pointer else ""
        is_inside = index.isdecimal() and int(index) < len(value)
        return place.child(keyword, int(index)) if is_inside else None
    return place.child(keyword) if keyword in ONE_SCHEMA and value is not None else None


def applied_together(root: Any, schema: Any) -> Iterator[dict[str, Any]]:
    """``schema`` and those that may hold for the same value."""
    pending, seen = [schema], set()
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for keyword in ("allOf", "anyOf", "oneOf"):
            options = schema.get(keyword)
            pending += options if isinstance(options, list) else []
        target = referenced(root, schema)
        if target is not None and target.steps not in seen:
            seen.add(target.steps)
            pending.append(target.schema)
