"""Gemma: calls in a notation of their own, as FunctionGemma and Gemma 4 write them.

    <start_function_call>call:f{city:<escape>Paris<escape>,days:3}<end_function_call>
    <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Gemma 3 has no format of its own: its templates ask for JSON or Python, as Llama's do.
"""

from __future__ import annotations

import re

from inference.text.tool_calls.argument_values import is_text
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.gemma_arguments import GemmaArguments
from inference.text.tool_calls.gemma_grammar import CALL, GemmaMarkers, gemma_rules
from inference.text.tool_calls.grammar_rules import WantedCalls
from inference.text.tool_calls.headed_call import HeadedCall, plain_name
from inference.text.tool_calls.json_scanner import WHITESPACE

BROKEN_NUMBER = re.compile(r"[+-].*|\.[0-9].*|[0-9]+\.|[0-9.]+[^0-9.:/-].*")
"""What may have been a number before a character was lost or added."""
FUNCTION_GEMMA = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>')


class GemmaFormat(MarkedFormat):
    name = "gemma"

    def __init__(self, markers: GemmaMarkers) -> None:
        self.openings = (markers.opens,)
        self.closings = (markers.closes,)
        self.markers = (markers.opens, markers.closes, markers.quote)
        self._gemma = markers

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        return GemmaCall(tools, quote=self._gemma.quote)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        return gemma_rules(wanted, self._gemma)


class GemmaCall(HeadedCall):
    def __init__(self, tools: KnownTools, *, quote: str) -> None:
        super().__init__(
            name_of=lambda head: plain_name(head.strip(WHITESPACE)), tools=tools, opening=CALL
        )
        self._quote = quote

    def _begin_arguments(self) -> GemmaArguments:
        return GemmaArguments([self._quote], takes_bare_text=self._takes_bare_text)

    def _takes_bare_text(self, key: str | None, bare: str) -> bool:
        """Whether a bare word is a text that lacks its quotes, and not a broken number or literal.
        ``key``: the argument's; ``None`` inside of one. Without a schema, what may be a broken
        number has two readings."""
        if self._name not in self._tools:
            return BROKEN_NUMBER.fullmatch(bare) is None
        properties = self._tools.properties(self._name)
        return (
            key is not None
            and key in properties
            and is_text(properties[key], self._tools.schema(self._name))
        )

    def _end_arguments(self, position: int) -> int:
        try:
            self._add_call(self._arguments.take())
        except ValueError:
            return self._break(position)
        return self._end(position)
