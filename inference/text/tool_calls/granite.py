"""Granite 3: a list of JSON calls behind ``<|tool_call|>``. Granite 4 writes Hermes' format.

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>     Phi-4-mini
<function_call> {"name": "f", "arguments": {"a": 1}}                   Granite 20B
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    callable_tools,
    json_call_rules,
    literal,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.marked_calls import MarkedCallParser
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.part_list import PartList

CALLS = "<|tool_call|>"
CALLS_END = "<|/tool_call|>"
OLDER_CALL = "<function_call>"


class GraniteFormat:
    name = "granite"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (CALLS, CALLS_END, OLDER_CALL))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> JsonCalls:
            return JsonCalls(known, stream=stream)

        return MarkedCallParser([CALLS, OLDER_CALL], begin, closings=[CALLS_END], closed=())

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
        more = f" ({literal(', ')} object)*" if parallel else ""
        many = parallel and choice.mode != "required"
        rules = [
            *answer_rules(CALLS, choice, parallel=many, tokenizer=tokenizer, between=""),
            f'rest: "[" object{more} "]"',
            *json_call_rules(called, choice, arguments_key="arguments"),
        ]
        return "\n".join(rules)
