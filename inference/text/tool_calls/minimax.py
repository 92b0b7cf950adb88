"""MiniMax M2: calls in a section of tags, with each argument's value as plain text.

    <minimax:tool_call>
    <invoke name="f">
    <parameter name="a">1</parameter>
    </invoke>
    <invoke name="g">
    </invoke>
    </minimax:tool_call>

The section's tags may be missing. A value is the exact text between its tags, or JSON where the
tool's schema has another type. Whitespace around the calls is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.dsml import DsmlCall, fits_quotes
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    any_of,
    callable_tools,
    literal,
    marker,
    special_marker_ids,
)
from inference.text.tool_calls.tag_rules import TagStyle, function_rules
from inference.text.tool_calls.tagged_call import PARAMETER_END

SECTION = "<minimax:tool_call>"
SECTION_END = "</minimax:tool_call>"
INVOKE = '<invoke name="'
INVOKE_END = "</invoke>"
PARAMETER = '<parameter name="'

_LINE = literal("\n")
_STYLE = TagStyle(
    begin=lambda name: literal(f'{name}">\n'),
    end=literal(INVOKE_END),
    key=lambda key: literal(f'{PARAMETER}{key}">'),
    any_key=f'{literal(PARAMETER)} /[^<>"\\n]+/ {literal(chr(34) + ">")}',
    value_end=literal(f"{PARAMETER_END}\n"),
    text_value=(
        f"text_body[lazy]: TEXT {literal(PARAMETER_END)}",
        f"text_value: text_body {_LINE}",
    ),
    fits=fits_quotes,
)


class MiniMaxCall(DsmlCall):
    """Reads one call, behind the section's tag if the call ``is_wrapped``, else behind its own."""

    INVOKE = INVOKE
    PARAMETER = PARAMETER
    AFTER_VALUE = (PARAMETER, INVOKE_END)
    VALUE_END = PARAMETER_END
    DOUBTS = re.compile(f'\n<parameter name=|{PARAMETER}[^<>"\n]+">|{PARAMETER_END}(?! )')


class MiniMaxFormat:
    name = "minimax"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (SECTION, SECTION_END))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            return MiniMaxCall(known, is_wrapped=opening == SECTION)

        return MarkedCallParser([SECTION, INVOKE], begin, closings=[SECTION_END], closed=[SECTION])

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
        # What one section holds is all that a forced answer calls.
        many = parallel and choice.mode != "required"
        more = f" ({_LINE} one)*" if parallel else ""
        rules = [
            *answer_rules(SECTION, choice, parallel=many, tokenizer=tokenizer, between=""),
            f"rest: {_LINE} one{more} {_LINE} {marker(tokenizer, SECTION_END)}",
            f"one: {literal(INVOKE)} ({any_of('one', len(called))})",
            *_STYLE.common_rules(),
        ]
        for index, tool in enumerate(called):
            rules += function_rules(f"one_{index}", tool, choice, _STYLE)
        return "\n".join(rules)
