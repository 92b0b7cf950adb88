"""Schemas of numbers whose ``multipleOf`` cannot be enforced between their bounds.

llguidance compares bounds and multiples as ranges of floats. Where it takes a range to hold a
multiple and the automaton of the two holds none, as whole multiples of 0.3 between 4 and 5, it
compiles the schema and fails when an answer comes to that value. So each such schema is compiled by
itself here, with its first token.
"""

from __future__ import annotations

from typing import Any

from inference.text.compiling import first_token_problem
from inference.text.errors import SchemaError
from inference.text.grammar_parts import grammar_text, json_part
from inference.text.schema_numbers import BOUNDS
from inference.text.schema_places import Place, all_places, replaced

ENFORCED = BOUNDS | {"type", "multipleOf"}
NOT_BETWEEN = "'multipleOf' cannot be enforced between the bounds beside it"


def without_impossible_multiples(root: Any) -> Any:
    """``root`` with ``false`` for what no value can match. Raises ``SchemaError`` where that is
    ``root`` itself."""
    for place in all_places(root):
        numbers = _numbers(place)
        if numbers is None or first_token_problem(grammar_text([json_part(numbers)])) is None:
            continue
        if not place.steps:
            raise SchemaError(("multipleOf",) if "multipleOf" in place.schema else (), NOT_BETWEEN)
        root = replaced(root, place.steps, False)
    return root


def _numbers(place: Place) -> dict[str, Any] | None:
    """What the schema and its ``allOf`` demand of a number; ``None``: no multiple and bounds."""
    if not isinstance(place.schema, dict):
        return None
    beside = place.schema.get("allOf")
    together = [place.schema, *(beside if isinstance(beside, list) else ())]
    demands = [
        {keyword: value for keyword, value in schema.items() if keyword in ENFORCED}
        for schema in together
        if isinstance(schema, dict)
    ]
    keywords = {keyword for demand in demands for keyword in demand}
    if "multipleOf" not in keywords or not keywords & BOUNDS:
        return None
    return {"allOf": demands} if len(demands) > 1 else demands[0]
