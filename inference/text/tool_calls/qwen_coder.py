"""Qwen-Coder: calls as tags, with each argument's value as plain text.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

The outer tags may be missing, as they are in the field, when the tool is one that was offered. One
newline at either end of a value is the format's. A value ends at the ``</parameter>`` behind which
the call continues or ends. Calls in JSON, as relatives write them, are read between the outer tags.
Whitespace around the calls is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.marked_calls import MarkedCallParser
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.qwen_coder_grammar import qwen_coder_grammar
from inference.text.tool_calls.tagged_call import CLOSE, FUNCTION, OPEN, TaggedCall


class QwenCoderFormat:
    name = "qwen_coder"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (OPEN, CLOSE))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            if opening == OPEN and character in "[{":
                return JsonCalls(known)
            return TaggedCall(known, is_wrapped=opening == OPEN)

        return MarkedCallParser([OPEN, FUNCTION], begin, closings=[CLOSE], closed=[OPEN])

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError``."""
        return qwen_coder_grammar(tools, choice, parallel=parallel, tokenizer=tokenizer)
