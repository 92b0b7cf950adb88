"""Calls that a grammar forces on a model whose own format nobody knows: JSON without markers.

{"name": "f", "arguments": {"a": 1}}
{"name": "g", "arguments": {}}
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.parts import Part, ToolCallParser
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.grammar_rules import callable_tools, json_call_rules, literal
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList


class PlainFormat:
    name = "plain"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset()

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return PlainParser(tools)

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Only of forced calls."""
        if choice.mode != "required":
            return None
        called = callable_tools(tools, choice, parallel=parallel)
        newline = literal("\n")
        return "\n".join(
            [
                f"start: object ({newline} object)*" if parallel else "start: object",
                *json_call_rules(called, choice, arguments_key="arguments"),
            ]
        )


class PlainParser:
    """The whole answer is calls; what is behind them is text."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._parts = PartList()
        self._calls = JsonCalls(KnownTools(tools), self._parts, lead="", is_marked=False)

    def feed(self, text: str) -> list[Part]:
        position = self._calls.feed(text, 0)
        self._parts.add_text(text[position:])
        return self._parts.take()

    def flush(self) -> list[Part]:
        if not self._calls.is_done:
            self._calls.close()
        return self._parts.take()
