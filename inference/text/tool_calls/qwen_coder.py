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
the call goes on or ends. Whitespace around the calls is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.parts import Part, ToolCallParser
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.qwen_coder_grammar import qwen_coder_grammar
from inference.text.tool_calls.tagged_call import CLOSE, FUNCTION, OPEN, TaggedCall

MARKERS = (OPEN, CLOSE, FUNCTION)


class QwenCoderFormat:
    name = "qwen_coder"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (OPEN, CLOSE))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return QwenCoderParser(tools)

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


class QwenCoderParser:
    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = KnownTools(tools)
        self._parts = PartList()
        self._text = FreeText(MARKERS)
        self._follows_call = False
        self._call: TaggedCall | None = None
        self._read: Callable[[str, int], int] = self._read_text

    def feed(self, text: str) -> list[Part]:
        position = 0
        while position < len(text):
            position = self._read(text, position)
        return self._parts.take()

    def flush(self) -> list[Part]:
        if self._call is not None:
            self._call.close()
        else:
            self._parts.add_text(self._text.flush())
        return self._parts.take()

    def _read_text(self, text: str, start: int) -> int:
        position = self._text.feed(text, start)
        self._parts.add_text(self._text.take())
        found = self._text.found
        if found == CLOSE:
            if not self._follows_call or self._text.has_text:
                self._parts.add_text(self._text.space + CLOSE)
                self._follows_call = False
            self._text = FreeText(MARKERS, follows_call=self._follows_call)
        elif found is not None:
            self._call = TaggedCall(
                self._tools, self._parts, lead=self._text.space + found, is_wrapped=found == OPEN
            )
            self._read = self._read_call
        return position

    def _read_call(self, text: str, start: int) -> int:
        assert self._call is not None
        position = self._call.feed(text, start)
        if self._call.is_done:
            self._follows_call = not self._call.is_broken
            self._text = FreeText(MARKERS, follows_call=self._follows_call)
            self._call = None
            self._read = self._read_text
        return position
