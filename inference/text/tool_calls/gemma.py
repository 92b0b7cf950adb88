"""Gemma: calls in a notation of their own, as FunctionGemma and Gemma 4 write them.

    <start_function_call>call:f{city:<escape>Paris<escape>,days:3}<end_function_call>
    <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Gemma 3 has no format of its own: its templates ask for JSON or Python, as Llama's do.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.parts import ToolCallParser
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.gemma_arguments import GemmaArguments
from inference.text.tool_calls.gemma_grammar import CALL, GemmaMarkers, gemma_grammar
from inference.text.tool_calls.json_scanner import WHITESPACE, ReadState
from inference.text.tool_calls.marked_calls import MarkedCallParser
from inference.text.tool_calls.markers import special_marker_ids
from inference.text.tool_calls.named_call import MAX_HEAD_LENGTH, NOT_IN_HEADS, plain_name
from inference.text.tool_calls.part_list import PartList

FUNCTION_GEMMA = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>')


class GemmaFormat:
    name = "gemma"

    def __init__(self, markers: GemmaMarkers) -> None:
        self._markers = markers

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        markers = self._markers
        return special_marker_ids(tokenizer, (markers.opens, markers.closes, markers.quote))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        markers = self._markers

        def begin(parts: PartList, opening: str, lead: str, character: str) -> GemmaCall:
            return GemmaCall(parts, lead=lead, quote=markers.quote)

        return MarkedCallParser([markers.opens], begin, closings=[markers.closes])

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        """Raises ``UnsupportedSchemaError``."""
        return gemma_grammar(tools, choice, self._markers, parallel=parallel, tokenizer=tokenizer)


class GemmaCall(CallReader):
    """``lead`` was read before and is text again when no call follows."""

    def __init__(self, parts: PartList, *, lead: str, quote: str) -> None:
        super().__init__(parts)
        self._held = lead
        self._head = ""
        self._expected = Expected((CALL,))
        self._arguments = GemmaArguments([quote])
        self._read = self._read_call

    def close(self) -> None:
        """The answer has ended."""
        if self.num_calls == 0:
            unread = self._expected.read if self._read == self._read_call else ""
            self._parts.add_text(self._held + unread + self._head)
        else:
            self._arguments.close()
            self._parts.add_arguments(self._arguments.take())
        self.is_done = True

    def _read_call(self, text: str, position: int) -> int:
        position = self._expected.feed(text, position)
        if self._expected.state is not ReadState.RUNNING:
            self._held += self._expected.read
            self._read = self._read_head
            if self._expected.state is ReadState.BROKEN:
                return self._refuse(position)
        return position

    def _read_head(self, text: str, position: int) -> int:
        character = text[position]
        name = plain_name(self._head.strip(WHITESPACE)) if character == "{" else None
        if name is not None:
            self.num_calls = 1
            self._parts.start_call(name)
            self._read = self._read_arguments
            return position
        if character in NOT_IN_HEADS or len(self._head) == MAX_HEAD_LENGTH:
            return self._refuse(position)
        self._head += character
        return position + 1

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._arguments.feed(text, position)
        if self._arguments.state is ReadState.BROKEN:
            self._arguments.close()
        self.is_done = self._arguments.state is not ReadState.RUNNING
        self._parts.add_arguments(self._arguments.take())
        return position

    def _refuse(self, position: int) -> int:
        self._parts.add_text(self._held + self._head)
        self.is_done = True
        return position
