"""GLM 4.5 and later: calls as a name and pairs of tags, with each argument's value as plain text.

    <tool_call>f
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>

GLM 4.7 leaves the newlines out. A value ends at the ``</arg_value>`` behind which the call
continues or ends. Calls in JSON are read as well. Whitespace around the calls is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.glm_call import KEY, KEY_END, VALUE, VALUE_END, GlmCall
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    callable_tools,
    head_rules,
    literal,
    marker,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.marked_calls import MarkedCallParser
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.tag_rules import TagStyle, function_rules
from inference.text.tool_calls.tagged_call import CLOSE, OPEN


class GlmFormat:
    name = "glm"

    def __init__(self, *, has_lines: bool = True) -> None:
        """``has_lines``: newlines between the tags. Both forms are read; grammars ask for the
        model's own."""
        self._newline = "\n" if has_lines else ""

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            if character in "[{":
                return JsonCalls(known)
            return GlmCall(known, follows_grammar=stream is not None)

        return MarkedCallParser([OPEN], begin, closings=[CLOSE])

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError`` for what tags cannot express."""
        called = callable_tools(tools, choice, parallel=parallel)
        if not called:
            return None
        style = self._style(tokenizer)
        rules = [
            *answer_rules(OPEN, choice, parallel=parallel, tokenizer=tokenizer, between="\n"),
            f"rest: function {marker(tokenizer, CLOSE)}",
            f"function: {' | '.join(f'function_{index}' for index in range(len(called)))}",
            *style.common_rules(),
        ]
        for index, tool in enumerate(called):
            rules += function_rules(f"function_{index}", tool, choice, style)
        return "\n".join(rules)

    def _style(self, tokenizer: Tokenizer) -> TagStyle:
        line = f" {literal(self._newline)}" if self._newline else ""
        key, key_end, value, value_end = (
            marker(tokenizer, text) for text in (KEY, KEY_END, VALUE, VALUE_END)
        )
        return TagStyle(
            begin=lambda name: literal(name + self._newline),
            end="",
            key=lambda name: f"{key} {literal(name)} {key_end}{line} {value}",
            any_key=f"{key} /[^<>\\n]+/ {key_end}{line} {value}",
            value_end=f"{value_end}{line}",
            text_value=(
                *head_rules("text_body", VALUE_END, tokenizer),
                f"text_value: text_body{line}",
            ),
        )
