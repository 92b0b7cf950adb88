"""Hermes: JSON objects in ``<tool_call>`` markers, as Qwen2.5, Qwen3, SmolLM and Hermes write them.

    text <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Several calls follow one another, each in markers of its own or in one pair, also as a list. The
closing marker may be missing. Whitespace around the calls is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.parts import Part, ToolCallParser
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    callable_tools,
    json_call_rules,
    literal,
    marker,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.part_list import PartList

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
NEWLINE = "\n"


class HermesFormat:
    name = "hermes"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (OPEN, CLOSE))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return HermesParser(tools)

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        called = callable_tools(tools, choice, parallel=parallel)
        if not called:
            return None
        rules = [
            *answer_rules(OPEN, choice, parallel=parallel, tokenizer=tokenizer, between="\n"),
            f"rest: {literal(NEWLINE)} object {literal(NEWLINE)} {marker(tokenizer, CLOSE)}",
            *json_call_rules(called, choice, arguments_key="arguments"),
        ]
        return "\n".join(rules)


class HermesParser:
    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = KnownTools(tools)
        self._parts = PartList()
        self._text = FreeText((OPEN, CLOSE))
        self._follows_call = False
        self._calls: JsonCalls | None = None

    def feed(self, text: str) -> list[Part]:
        position = 0
        while position < len(text):
            read = self._read_text if self._calls is None else self._read_calls
            position = read(text, position)
        return self._parts.take()

    def flush(self) -> list[Part]:
        if self._calls is not None:
            self._calls.close()
        else:
            self._parts.add_text(self._text.flush())
        return self._parts.take()

    def _read_text(self, text: str, start: int) -> int:
        position = self._text.feed(text, start)
        self._parts.add_text(self._text.take())
        if self._text.found == OPEN:
            self._calls = JsonCalls(self._tools, self._parts, lead=self._text.space + OPEN)
        elif self._text.found == CLOSE:
            if not self._follows_call or self._text.has_text:
                self._parts.add_text(self._text.space + CLOSE)
                self._follows_call = False
            self._text = FreeText((OPEN, CLOSE), follows_call=self._follows_call)
        return position

    def _read_calls(self, text: str, start: int) -> int:
        assert self._calls is not None
        position = self._calls.feed(text, start)
        if self._calls.is_done:
            self._follows_call = self._calls.num_calls > 0
            self._text = FreeText((OPEN, CLOSE), follows_call=self._follows_call)
            self._calls = None
        return position
