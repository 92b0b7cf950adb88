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
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    answer_rules,
    callable_tools,
    json_call_rules,
    literal,
    marker,
    special_marker_ids,
)
from inference.text.tool_calls.json_calls import JsonCalls

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
NEWLINE = "\n"


class HermesFormat:
    name = "hermes"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (OPEN, CLOSE))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> JsonCalls:
            return JsonCalls(known, stream=stream)

        return MarkedCallParser([OPEN], begin, closings=[CLOSE])

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
            *json_call_rules(called, choice, CallKeys()),
        ]
        return "\n".join(rules)
