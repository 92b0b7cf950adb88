"""The base of every format: its markers, its parser of answers, and its grammar for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import partial

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    callable_tools,
    special_marker_ids,
)


class CallFormat(ABC):
    """A ``ToolFormat``."""

    name: str
    markers: Sequence[str] = ()
    """Markers that may be special tokens, whose text the parser needs."""

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, self.markers)

    @abstractmethod
    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser: ...

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        called = callable_tools(tools, choice, parallel=parallel)
        wanted = WantedCalls(called, choice, parallel, tokenizer)
        return "\n".join(self._rules(wanted)) or None if called else None

    @abstractmethod
    def _rules(self, wanted: WantedCalls) -> list[str]:
        """Lark rules for the whole answer; none where it cannot be held to calls. Raises
        ``UnsupportedSchemaError`` for what the format cannot express."""


class MarkedFormat(CallFormat):
    """Calls stand behind one of ``openings``."""

    openings: Sequence[str]
    closings: Sequence[str] = ()
    closed: Collection[str] | None = None
    inner: Collection[str] = ()
    """``MarkedCallParser`` explains ``closings``, ``closed`` and ``inner``."""

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return MarkedCallParser(
            self.openings,
            partial(self._reader, KnownTools(tools)),
            closings=self.closings,
            closed=self.closed,
            inner=self.inner,
        )

    @abstractmethod
    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        """Reads the calls behind ``opening``, the first character behind it being ``character``.
        ``stream``: where arguments go as they are generated, if at all."""
