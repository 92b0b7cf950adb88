"""Qwen-Coder and Seed-OSS: calls as tags, with each argument's value as plain text.

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
Whitespace around the calls is left out. Seed-OSS writes ``<seed:tool_call>`` around a call, and
values to the character:

    <seed:tool_call>
    <function=f>
    <parameter=a>1</parameter>
    </function>
    </seed:tool_call>
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
from inference.text.tool_calls.qwen_coder_grammar import (
    QWEN_TAGS,
    SEED_TAGS,
    CallTags,
    qwen_coder_grammar,
)
from inference.text.tool_calls.tagged_call import FUNCTION, SeedCall, TaggedCall


class QwenCoderFormat:
    name = "qwen_coder"
    tags: CallTags = QWEN_TAGS
    reader: type[TaggedCall] = TaggedCall

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (self.tags.opens, self.tags.closes))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            if opening == opens and character in "[{":
                return JsonCalls(known)
            return self.reader(known, is_wrapped=opening == opens)

        opens = self.tags.opens
        return MarkedCallParser(
            [opens, FUNCTION], begin, closings=[self.tags.closes], closed=[opens]
        )

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError``."""
        return qwen_coder_grammar(
            tools, choice, tags=self.tags, parallel=parallel, tokenizer=tokenizer
        )


class SeedFormat(QwenCoderFormat):
    name = "seed"
    tags = SEED_TAGS
    reader = SeedCall
