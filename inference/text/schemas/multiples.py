"""Schemas of numbers whose ``multipleOf`` cannot be enforced between their bounds.

llguidance compares bounds and multiples as ranges of floats. Where it takes a range to hold a
multiple and the automaton of the two holds none, as whole multiples of 0.3 between 4 and 5, it
compiles the schema and fails when an answer comes to that value. So each such schema is compiled by
itself here, with its first token.
"""

from __future__ import annotations

from typing import Any

from inference.text.errors import SchemaError
from inference.text.grammars.compiling import first_token_problem
from inference.text.grammars.parts import grammar_text, json_part
from inference.text.schemas.numbers import BOUNDS
from inference.text.schemas.places import Place, Steps, all_places, replaced
from inference.text.schemas.references import referenced

ENFORCED = BOUNDS | {"type", "multipleOf"}
COMBINED = ("allOf", "anyOf", "oneOf")
MAX_COMBINED = 50
"""The most schemas for one value that are combined. Beyond it they are not looked at: their
combinations may be without number."""
NOT_BETWEEN = "'multipleOf' cannot be enforced between the bounds beside it"


def without_impossible_multiples(root: Any) -> Any:
    """``root`` with ``false`` for what no value can match. Raises ``SchemaError`` where that is
    ``root`` itself and nothing inside it."""
    places = list(all_places(root))
    if not any(isinstance(one.schema, dict) and "multipleOf" in one.schema for one in places):
        return root
    impossible = [place.steps for place in places if _is_impossible(root, place)]
    if impossible == [()]:
        raise SchemaError(("multipleOf",) if "multipleOf" in root else (), NOT_BETWEEN)
    for steps in reversed(impossible):  # innermost first
        if steps:
            root = replaced(root, steps, False)
    return root


def _is_impossible(root: Any, place: Place) -> bool:
    numbers = _Numbers(root).of(place.schema)
    return (
        numbers is not None and first_token_problem(grammar_text([json_part(numbers)])) is not None
    )


class _Numbers:
    """What a schema, and those that hold for the same value, demand of a number."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._keywords: set[str] = set()
        self._num_combined = 0

    def of(self, schema: Any) -> dict[str, Any] | None:
        """``None``: no multiple with a bound."""
        demands = self._demands(schema, frozenset())
        is_bounded = "multipleOf" in self._keywords and self._keywords & BOUNDS
        if not is_bounded or self._num_combined > MAX_COMBINED:
            return None
        return demands if isinstance(demands, dict) else None

    def _demands(self, schema: Any, seen: frozenset[Steps]) -> Any:
        self._num_combined += 1
        if not isinstance(schema, dict) or self._num_combined > MAX_COMBINED:
            return schema if isinstance(schema, bool) else {}
        kept = {keyword: value for keyword, value in schema.items() if keyword in ENFORCED}
        self._keywords |= kept.keys()
        for keyword in COMBINED:
            if isinstance(options := schema.get(keyword), list):
                kept[keyword] = [self._demands(option, seen) for option in options]
        target = referenced(self._root, schema)
        if target is not None and target.steps not in seen:
            inner = self._demands(target.schema, seen | {target.steps})
            kept["allOf"] = [*kept.get("allOf", ()), inner]
        return kept
