"""Kimi K2: calls in a section between special tokens, named by an id that counts them.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
    <|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>
    <|tool_calls_section_end|>

The outer markers may be missing. The model's own ids are left out: the API gives its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import (
    literal,
    marker,
    section_grammar,
    special_marker_ids,
)
from inference.text.tool_calls.headed_call import NamedCall, plain_name
from inference.text.tool_calls.json_scanner import WHITESPACE

SECTION_BEGIN = "<|tool_calls_section_begin|>"
SECTION_END = "<|tool_calls_section_end|>"
CALL_BEGIN = "<|tool_call_begin|>"
CALL_END = "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
NAMESPACE = "functions."

_COUNT = re.compile(r":\d+\Z")


class KimiFormat:
    name = "kimi"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        markers = (SECTION_BEGIN, SECTION_END, CALL_BEGIN, CALL_END, ARGUMENTS)
        return special_marker_ids(tokenizer, markers)

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> NamedCall:
            expected = CALL_BEGIN if opening == SECTION_BEGIN else None
            return NamedCall(name_of=_name, tools=known, stream=stream, opening=expected)

        openings = [SECTION_BEGIN, CALL_BEGIN]
        return MarkedCallParser(openings, begin, closings=[CALL_END, SECTION_END], inner=[CALL_END])

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        def head(tool: ToolDefinition) -> str:
            name = literal(f"{NAMESPACE}{tool.name}:")
            return f"{name} /[0-9]{{1,3}}/ {marker(tokenizer, ARGUMENTS)}"

        return section_grammar(
            tools,
            choice,
            parallel=parallel,
            tokenizer=tokenizer,
            section=(SECTION_BEGIN, SECTION_END),
            call=(CALL_BEGIN, CALL_END),
            head=head,
        )


def _name(head: str) -> str | None:
    identity = head.rstrip(WHITESPACE).removesuffix(ARGUMENTS).strip(WHITESPACE)
    return plain_name(_COUNT.sub("", identity).removeprefix(NAMESPACE))
