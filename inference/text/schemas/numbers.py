"""Which numbers of a schema llguidance enforces exactly; the others are refused at their place, or
rewritten so that it does.

It reads numbers as 64-bit floats, long ones to a neighbouring float. It converts the bounds of
integers to 64 bits, where larger ones saturate, and ends the process at the least of them. Of
``multipleOf`` it makes an automaton with a state for each remainder: one of a million takes half a
minute for a token or allows every number.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, TypeGuard

from inference.text.errors import SchemaError
from inference.text.schemas.places import (
    Place,
    Steps,
    all_places,
    applied_together,
    replaced,
)

BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
INT64_MAX = 2**63 - 1
MAX_REMAINDERS = 2_000
"""The most remainders. With more, and bounds of 16 digits, llguidance gives up and allows every
number."""
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


def check_numbers(root: Any, place: Place) -> None:
    """Raises ``SchemaError`` for the first number of this schema, not of those inside it, that is
    not enforced exactly."""
    if not isinstance(place.schema, dict):
        return
    for keyword, value in place.schema.items():
        steps = (*place.steps, keyword)
        if keyword in BOUNDS and is_number(value):
            if not (is_exact(value) or _is_int64_limit(keyword, value, place.schema)):
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
        elif is_number(value) and not is_exact(value):
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
    """The greatest integer of 64 bits: where the bound of integers saturates."""
    return keyword == "maximum" and value == INT64_MAX and schema.get("type") == "integer"


def is_exact(value: int | float) -> bool:
    if not math.isfinite(value) or not -(2**63) < value < 2**63:
        return False
    if isinstance(value, int):
        return int(float(value)) == value and abs(float(value)) < 2**63
    return _as_llguidance_reads(json.dumps(value)) == value


def _as_llguidance_reads(text: str) -> float:
    """The float that serde_json reads, without its ``float_roundtrip``: the digits as one float,
    times or by a power of ten."""
    sign, digits, exponent = Decimal(text).as_tuple()
    significand, power = float(int("".join(map(str, digits)))), int(exponent)
    if abs(power) > 300:
        return math.nan
    size = significand * float(f"1e{power}") if power >= 0 else significand / float(f"1e{-power}")
    return -size if sign else size


SMALLEST = 1e-30
"""The smallest bound beside nought: smaller ones make expressions that are nested too deeply."""
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
    """The first number beyond ``whole`` that llguidance reads exactly."""
    if whole == 0:
        return math.copysign(SMALLEST, towards)
    following = math.nextafter(whole, towards)
    while not is_exact(following):
        following = math.nextafter(following, towards)
    return following
