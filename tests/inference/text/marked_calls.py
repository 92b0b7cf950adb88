"""A tool call form for tests, ``<call>name {"a": 1}</call>``, everything else text; and what a
choice's text is taken apart into."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from inference.text.choice_text import ChoiceText, Piece, merged
from inference.text.tool_calls.argument_values import KnownTools
from inference.text.tool_calls.call_parser import CallFormat, Notation
from inference.text.tool_calls.grammar_rules import WantedCalls
from inference.text.tool_calls.json_formats import NAME, headed_notation


class MarkedCalls(CallFormat):
    name = "marked"
    openings = ("<call>",)
    closings = ("</call>",)
    markers = (*openings, *closings)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (headed_notation(f"{NAME} ", tools),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        return []


def split(whole: Any, cuts: list[int]) -> list[Any]:
    """The parts of a text or a list between ``cuts``, which may lie beyond it."""
    borders = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [whole[start:end] for start, end in itertools.pairwise(borders)]


def pieces_of(choice: ChoiceText, text: str) -> list[Piece]:
    pieces: list[Piece] = []
    for token_id in choice.tokenizer.encode(text, add_special_tokens=False):
        pieces += choice.feed(token_id)[1]
        if choice.stop is not None:
            return merged(pieces)
    return merged([*pieces, *choice.flush()])
