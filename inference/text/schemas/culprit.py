"""Finds the keyword that llguidance rejects in a schema: its messages do not give its place.

    open all subschemas but one: still the same problem? ─▶ search that one
    nothing below is to blame ─▶ the keyword without which the problem is gone

Subschemas are opened by halves, so that a schema of hundreds takes a dozen compilations. They delay
the requests behind this one, so their number is limited; at the limit the narrowest place found is
named.
"""

from __future__ import annotations

from collections.abc import Callable

from inference.text.grammars.compiling import find_problem
from inference.text.grammars.parts import grammar_text, json_part
from inference.text.schemas.places import (
    STRUCTURE,
    Place,
    Schema,
    Steps,
    opened,
    replaced,
    subschemas,
)

MAX_COMPILED_CHARS = 200_000
"""The most that all trials compile together: a few tenths of a second. Schemas of tools have some
thousand."""


class _EnoughTriedError(Exception):
    pass


class _Trials:
    """Raises ``_EnoughTriedError`` instead of going over ``MAX_COMPILED_CHARS``."""

    def __init__(self, problem: str, find: Callable[[str], str | None]) -> None:
        self._problem = problem
        self._find = find
        self._chars_left = MAX_COMPILED_CHARS

    def remains(self, schema: Schema) -> bool:
        """Whether the problem does."""
        text = grammar_text([json_part(schema)])
        self._chars_left -= len(text)
        if self._chars_left < 0:
            raise _EnoughTriedError
        return self._find(text) == self._problem


def find_culprit(
    root: Schema, problem: str, find: Callable[[str], str | None] | None = None
) -> Steps:
    """The steps to the deepest place that has the ``problem`` by itself, and to its keyword; to a
    place around it where the schema is too large to look further. ``find`` returns the problem of a
    grammar; ``None``: ``find_problem``."""
    trials, place = _Trials(problem, find or find_problem), Place((), root)
    try:
        while (deeper := _child_to_blame(trials, root, place)) is not None:
            root, place = deeper
        return _keyword_to_blame(trials, root, place)
    except _EnoughTriedError:
        return place.steps


def _keyword_to_blame(trials: _Trials, root: Schema, place: Place) -> Steps:
    keywords = place.schema if isinstance(place.schema, dict) else {}
    # Structure last: without it a schema allows nearly everything, and most problems go away.
    for keyword in sorted(keywords, key=lambda name: name == "type" or name in STRUCTURE):
        others = {name: value for name, value in keywords.items() if name != keyword}
        if not trials.remains(replaced(root, place.steps, others)):
            return (*place.steps, keyword)
    return place.steps


def _child_to_blame(trials: _Trials, root: Schema, place: Place) -> tuple[Schema, Place] | None:
    """A subschema right below ``place`` that has the problem by itself, and ``root`` with those
    beside it open."""
    suspects = list(subschemas(place))
    if not suspects or trials.remains(_with(root, opened(place, suspects))):
        return None
    while len(suspects) > 1:
        first, second = suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :]
        for kept, others in ((first, second), (second, first)):
            narrowed = opened(place, others)
            if trials.remains(_with(root, narrowed)):
                place, suspects = narrowed, kept
                break
        else:
            return None  # it takes two of them
    return _with(root, place), suspects[0]


def _with(root: Schema, place: Place) -> Schema:
    changed: Schema = replaced(root, place.steps, place.schema)
    return changed
