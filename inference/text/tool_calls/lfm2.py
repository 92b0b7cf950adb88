"""LFM2: a Python list of calls between special tokens.

    <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>

JSON objects between them, which its prompts may ask for, are read too. Grammars ask for Python with
JSON's values, which are the same but for ``true``, ``false`` and ``null``.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    any_of,
    callable_tools,
    literal,
    marker,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.marked_calls import MarkedCallParser
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.python_grammar import COMMON_RULES, python_call_rules
from inference.text.tool_calls.pythonic_calls import PythonicCalls

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"


class Lfm2Format:
    name = "lfm2"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (START, END))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            return (
                JsonCalls(known)
                if character == "{"
                else PythonicCalls(is_opened=False, keeps_json=True)
            )

        return MarkedCallParser([START], begin, closings=[END])

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError``."""
        called = callable_tools(tools, choice, parallel=parallel)
        if not called:
            return None
        many = parallel and choice.mode != "required"
        more = f" ({literal(', ')} one)*" if parallel else ""
        rules = [
            *answer_rules(START, choice, parallel=many, tokenizer=tokenizer, between=""),
            f'rest: "[" one{more} "]" {marker(tokenizer, END)}',
            f"one: {any_of('one', len(called))}",
            *COMMON_RULES,
        ]
        for index, tool in enumerate(called):
            rules += python_call_rules(f"one_{index}", tool, choice)
        return "\n".join(rules)
