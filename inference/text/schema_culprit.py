"""Which keyword of a schema llguidance complains of: its messages do not say where.

    open all subschemas but one: still the same problem? ─▶ it is in that one: look there
    nothing below is to blame ─▶ the keyword without which the problem is gone

Subschemas are opened by halves, so that a schema of hundreds takes a dozen compilations.
"""

from __future__ import annotations

from inference.text.compiling import find_problem, grammar_text, json_part
from inference.text.schema_places import (
    STRUCTURE,
    Place,
    Schema,
    Steps,
    opened,
    replaced,
    subschemas,
)


def find_culprit(root: Schema, problem: str) -> Steps:
    """The steps to the deepest place that has the ``problem`` by itself, and to its keyword."""
    place = Place((), root)
    while (deeper := _child_to_blame(root, place, problem)) is not None:
        root, place = deeper
    keywords = place.schema if isinstance(place.schema, dict) else {}
    # Structure last: without it a schema says little, and most problems go away.
    for keyword in sorted(keywords, key=lambda name: name == "type" or name in STRUCTURE):
        others = {name: value for name, value in keywords.items() if name != keyword}
        if not _remains(problem, replaced(root, place.steps, others)):
            return (*place.steps, keyword)
    return place.steps


def _child_to_blame(root: Schema, place: Place, problem: str) -> tuple[Schema, Place] | None:
    """A subschema right below ``place`` that has the problem by itself, and ``root`` with those
    beside it open."""
    suspects = list(subschemas(place))
    if not suspects or _remains(problem, _with(root, opened(place, suspects))):
        return None
    while len(suspects) > 1:
        first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        for kept, others in ((first, second), (second, first)):
            narrowed = opened(place, others)
            if _remains(problem, _with(root, narrowed)):
                place, suspects = narrowed, kept
                break
        else:
            return None  # it takes two of them
    return _with(root, place), suspects[0]


def _with(root: Schema, place: Place) -> Schema:
    changed: Schema = replaced(root, place.steps, place.schema)
    return changed


def _remains(problem: str, schema: Schema) -> bool:
    return find_problem(grammar_text([json_part(schema)])) == problem
