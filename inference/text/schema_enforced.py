"""A schema in the keywords and numbers that llguidance enforces exactly: without what forbids
nothing, and with OpenAPI's ``nullable`` as a type.

llguidance reads numbers as 64-bit floats, long ones to a neighbouring float. It converts the bounds
of integers to 64 bits, where larger ones saturate, and ends the process at the least of them. Of
``multipleOf`` it makes an automaton with a state for each remainder: one of a million takes half a
minute for a token or allows every number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, TypeGuard

from inference.text.errors import SchemaError
from inference.text.schema_places import (
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    STRUCTURE,
    Place,
    Steps,
    all_places,
    applied_together,
    referenced,
    replaced,
)

VACUOUS: dict[str, tuple[Any, ...]] = {
    "propertyNames": (True, {}, {"type": "string"}),
    "uniqueItems": (False,),
    "nullable": (False,),
}
"""Keywords that are not enforced, and their values that forbid nothing."""
REFERENCED = frozenset({"$defs", "definitions", "$schema", "$id", "id"})
"""They stay where they are when a schema becomes one option of two: references lead to them."""


def enforced(schema: Any) -> Any:
    """Returns a copy. Raises ``SchemaError`` for inexact numbers and schemas without an end."""
    found = _rewritten(schema)
    try:
        for place in all_places(found):
            _check_numbers(found, place)
        _check_ends(found)
        return found
    except SchemaError as error:
        raise SchemaError(original_steps(schema, error.steps), str(error)) from None


def _rewritten(schema: Any) -> Any:
    """``nullable`` beside ``enum`` allows null only where the enum lists it, as OpenAPI has it."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            kept[keyword] = {name: _rewritten(inner) for name, inner in value.items()}
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            kept[keyword] = [_rewritten(inner) for inner in value]
        elif keyword in ONE_SCHEMA:
            kept[keyword] = _rewritten(value)
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
    """Maps ``steps`` in ``enforced(schema)`` back to ``schema``."""
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


def _check_ends(root: Any) -> None:
    """llguidance compiles a schema that requires itself; an answer in it never ends."""
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


BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
INT64_MAX = 2**63 - 1
MAX_REMAINDERS = 2_000
"""With more, and bounds of 16 digits, llguidance gives up and allows every number."""
MAX_DECIMALS = 6

NOT_EXACT = (
    "numbers are enforced between -2^63 and 2^63, both excluded, and only those that a 64-bit "
    "float holds exactly as written"
)
TOO_MANY_REMAINDERS = (
    f"multiples are enforced up to {MAX_REMAINDERS:,}, where the point is left out, with at most "
    f"{MAX_DECIMALS} decimals"
)
SEVERAL_MULTIPLES = "one value is enforced to be a multiple of one number"
MULTIPLES_OF_CONSTANTS = "multipleOf is not enforced for values that const or enum list"


def _check_numbers(root: Any, place: Place) -> None:
    """Does not check the schemas inside it."""
    if not isinstance(place.schema, dict):
        return
    for keyword, value in place.schema.items():
        steps = (*place.steps, keyword)
        if keyword in BOUNDS and is_number(value):
            if not (_is_exact(value) or _is_int64_limit(keyword, value, place.schema)):
                raise SchemaError(steps, NOT_EXACT)
        elif keyword in ("const", "enum"):
            _check_constants(steps, value)
    _check_multiples(root, place)


def _check_constants(steps: Steps, value: Any) -> None:
    pending: list[tuple[Steps, Any]] = [(steps, value)]
    while pending:
        steps, value = pending.pop()
        if isinstance(value, dict):
            pending += [((*steps, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            pending += [((*steps, index), inner) for index, inner in enumerate(value)]
        elif is_number(value) and not _is_exact(value):
            raise SchemaError(steps, NOT_EXACT)


def _check_multiples(root: Any, place: Place) -> None:
    multiple = place.schema.get("multipleOf")
    if _is_multiple(multiple) and not _are_remainders_few(multiple):
        raise SchemaError((*place.steps, "multipleOf"), TOO_MANY_REMAINDERS)
    if place.schema.keys() & {"$ref", "allOf", "anyOf", "oneOf", "const", "enum"}:
        together = list(applied_together(root, place.schema))
        multiples = {s["multipleOf"] for s in together if _is_multiple(s.get("multipleOf"))}
        if len(multiples) > 1:
            raise SchemaError(place.steps, SEVERAL_MULTIPLES)
        if multiples and any(schema.keys() & {"const", "enum"} for schema in together):
            raise SchemaError(place.steps, MULTIPLES_OF_CONSTANTS)


def _are_remainders_few(multiple: int | float) -> bool:
    decimal = Decimal(repr(multiple)).normalize()
    num_decimals = max(0, -int(decimal.as_tuple().exponent))
    is_small = num_decimals <= MAX_DECIMALS and decimal.scaleb(num_decimals) <= MAX_REMAINDERS
    return is_small and _is_read_exactly(multiple)


def _is_read_exactly(multiple: int | float) -> bool:
    """llguidance multiplies by ten, in floats, until it has a whole number."""
    digits, num_decimals = float(multiple), 0
    while digits != math.floor(digits) and num_decimals <= MAX_DECIMALS:
        digits, num_decimals = digits * 10.0, num_decimals + 1
    return Decimal(digits).scaleb(-num_decimals) == Decimal(repr(multiple))


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_multiple(value: Any) -> TypeGuard[int | float]:
    return is_number(value) and value > 0


def _is_int64_limit(keyword: str, value: int | float, schema: dict[str, Any]) -> bool:
    """The bound of integers saturates there."""
    return keyword == "maximum" and value == INT64_MAX and schema.get("type") == "integer"


def _is_exact(value: int | float) -> bool:
    if not math.isfinite(value) or not -(2**63) < value < 2**63:
        return False
    if isinstance(value, int):
        return int(float(value)) == value and abs(float(value)) < 2**63
    return _as_llguidance_reads(json.dumps(value)) == value


def _as_llguidance_reads(text: str) -> float:
    """serde_json without ``float_roundtrip``: all digits as one float, then the power of ten."""
    sign, digits, exponent = Decimal(text).as_tuple()
    significand, power = float(int("".join(map(str, digits)))), int(exponent)
    if abs(power) > 300:
        return math.nan
    size = significand * float(f"1e{power}") if power >= 0 else significand / float(f"1e{-power}")
    return -size if sign else size


SMALLEST = 1e-30
"""Smaller bounds, except 0, make expressions that are nested too deeply."""
LOWER = ("minimum", "exclusiveMinimum")
UPPER = ("maximum", "exclusiveMaximum")


def with_exact_bounds(root: Any) -> Any:
    """Rewrites exclusive bounds that llguidance reads as inclusive. Returns a copy where one is
    needed.

    Between a whole number and a bound with the same whole part, as 0 and 0.5, llguidance includes
    the whole number. The next float beyond it, as an inclusive bound, excludes it.
    """
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
    if whole == 0:
        return math.copysign(SMALLEST, towards)
    following = math.nextafter(whole, towards)
    while not _is_exact(following):
        following = math.nextafter(following, towards)
    return following
