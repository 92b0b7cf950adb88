"""Exclusive bounds that llguidance reads as inclusive, written so that it does not.

Between a whole number and a bound with the same whole part, as 0 and 0.5, it includes the whole
number. The next float beyond it, as an inclusive bound, excludes it.
"""

from __future__ import annotations

import math
from typing import Any

from inference.text.schemas.numbers import is_exact, is_number
from inference.text.schemas.places import all_places, replaced

SMALLEST = 1e-30
"""The smallest bound beside nought: smaller ones make expressions that are nested too deeply."""
LOWER = ("minimum", "exclusiveMinimum")
UPPER = ("maximum", "exclusiveMaximum")


def with_exact_bounds(root: Any) -> Any:
    """A copy where one is needed."""
    places = [place for place in all_places(root) if isinstance(place.schema, dict)]
    upper = [bound for place in places for bound in _bounds(place.schema, UPPER)]
    lower = [bound for place in places for bound in _bounds(place.schema, LOWER)]
    # Any two may hold for the same value: references and allOf combine them.
    above = {math.trunc(bound) for bound in upper if bound > math.trunc(bound)}
    below = {math.trunc(bound) for bound in lower if bound < math.trunc(bound)}
    for place in places:
        schema = {**place.schema}
        if _is_one_of(schema.get("exclusiveMinimum"), above):
            least = _next(schema.pop("exclusiveMinimum"), math.inf)
            schema["minimum"] = max(least, schema.get("minimum", least))
        if _is_one_of(schema.get("exclusiveMaximum"), below):
            greatest = _next(schema.pop("exclusiveMaximum"), -math.inf)
            schema["maximum"] = min(greatest, schema.get("maximum", greatest))
        if schema != place.schema:
            root = replaced(root, place.steps, schema)
    return root


def _bounds(schema: dict[str, Any], keywords: tuple[str, str]) -> list[int | float]:
    return [schema[keyword] for keyword in keywords if is_number(schema.get(keyword))]


def _is_one_of(bound: Any, numbers: set[int]) -> bool:
    return is_number(bound) and bound in numbers


def _next(whole: int | float, towards: float) -> float:
    """The first number beyond ``whole`` that llguidance reads exactly."""
    if whole == 0:
        return math.copysign(SMALLEST, towards)
    following = math.nextafter(whole, towards)
    while not is_exact(following):
        following = math.nextafter(following, towards)
    return following
