"""Resolves the references of a JSON schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from inference.text.schemas.places import ONE_SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS, Place


def referenced(root: Any, schema: Any) -> Place | None:
    """What the ``$ref`` of ``schema`` points at; ``None`` where ``root`` has no schema there."""
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
    """The subschema that the first steps of ``pointer`` lead to. Removes them."""
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
    """``schema`` and those inside it that hold for the same value."""
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
