"""Calls that a grammar forces on a model with an unknown format: JSON without markers.

{"name": "f", "arguments": {"a": 1}}
{"name": "g", "arguments": {}}
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import CallParser
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    callable_tools,
    json_call_rules,
    literal,
)
from inference.text.tool_calls.json_calls import JsonCalls


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
        """Returns the grammar of forced calls; there is none for others."""
        if choice.mode != "required":
            return None
        called = callable_tools(tools, choice, parallel=parallel)
        newline = literal("\n")
        return "\n".join(
            [
                f"start: object ({newline} object)*" if parallel else "start: object",
                *json_call_rules(called, choice, CallKeys()),
            ]
        )


class PlainParser(CallParser):
    """The whole answer is calls; anything behind them is text."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        super().__init__(())
        self._tools = KnownTools(tools)
        self._read = self._read_first

    def _read_first(self, text: str, position: int) -> int:
        calls = JsonCalls(self._tools, is_marked=False, stream=self._stream)
        self._begin_calls(calls, "")
        return position

    def _found(self, position: int) -> int:
        raise AssertionError("there is no marker to find")
