"""The base of every format, and of its parser, which reads free text with calls in it.

    text ──marker──▶ what may open a call ──▶ reader of calls ──▶ what follows ──▶ text
     ▲                    │ none                 │ broken             │ remains of a call
     └────────────────────┘                      └──▶ text to the end ◀┘

A block of calls is held back until its calls are whole and what follows cannot be a part of them.
A broken block is text, whole, and so is the rest of the answer: a string of a broken call may hold
what reads like another call. What opens a block is the format's, and its subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import CallArguments, CallStarted, Part, TextPart, ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_reader import CallReader, FreeText, KnownTools, ReadCall
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    callable_tools,
    special_marker_ids,
)
from inference.text.tool_calls.json_text import WHITESPACE


class PartList:
    """Shared by a parser and its readers. Nothing empty gets in."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def add_text(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(text))

    def start_call(self, name: str) -> None:
        self._parts.append(CallStarted(name))

    def add_arguments(self, fragment: str) -> None:
        if fragment:
            self._parts.append(CallArguments(fragment))

    def take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts


_CALL_CHARACTERS = frozenset('"{}[]:<>=')
"""Characters of the remains of a call, rare in a line of prose behind a call."""


class Decision(NamedTuple):
    block: str
    """The block's text as generated, with the text read behind it."""
    calls: tuple[ReadCall, ...]
    """The calls that were held back until the block ended; streamed ones are left out."""
    refusal: str
    """Why the block, or its rest behind its calls, is text; empty where none of it is."""
    has_streamed: bool = False
    """Whether calls of it were sent as they were generated."""


class CallParser(ABC):
    """A ``ToolCallParser``. ``_read`` is the state: it takes the text and a position, and returns
    where it stopped."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.streams_arguments = False
        """Sends JSON arguments as they are generated. Set before the first text, and only where a
        grammar holds the answer to calls that can be read. An answer cut off by its limit leaves
        such arguments unfinished."""
        self.on_decision: Callable[[Decision], None] | None = None
        """Called for each block that has been decided. Set before the first text."""
        self._markers = markers
        self._inner_closings: Collection[str] = ()
        self._parts = PartList()
        self._text = FreeText(markers)
        self._follows_call = False
        """Whether ``_text`` began where a call ended."""
        self._lead: list[str] = []
        """Read before a call that may follow: text again where none does."""
        self._needs_closing = False
        """Whether nothing but a marker may follow the calls that were read."""
        self._calls: CallReader | None = None
        self._block: list[str] = []
        self._num_call_pieces = 0
        """How many pieces of the block the calls took."""
        self._following = ""
        self._read: Callable[[str, int], int] = self._read_text

    def feed(self, text: str) -> list[Part]:
        position = 0
        while position < len(text):
            position = self._read(text, position)
        return self._parts.take()

    def flush(self) -> list[Part]:
        if self._calls is None:
            self._parts.add_text("".join(self._lead) + self._text.flush())
        elif self._calls.is_done:
            self._following += self._text.flush()
            self._judge()
        else:
            self._calls.close()
            self._end_calls()
            if self._calls is not None:
                self._judge()
        return self._parts.take()

    @abstractmethod
    def _found(self, position: int) -> int:
        """Handle the marker that ``_text`` found and that ends at ``position``."""

    def _confirms(self) -> bool:
        """Whether the marker that ``_text`` has found stands behind calls by right."""
        return True

    @property
    def _stream(self) -> PartList | None:
        return self._parts if self.streams_arguments else None

    def _read_text(self, text: str, start: int) -> int:
        position = self._text.feed(text, start)
        if self._text.found is not None:
            return self._found(position)
        self._parts.add_text(self._text.take())
        return position

    def _begin_calls(self, calls: CallReader, lead: str) -> None:
        self._calls, self._read = calls, self._read_calls
        self._block = [lead]

    def _read_calls(self, text: str, start: int) -> int:
        assert self._calls is not None
        position = self._calls.feed(text, start)
        self._block.append(text[start:position])
        if self._calls.is_done:
            self._end_calls()
        return position

    def _end_calls(self) -> None:
        assert self._calls is not None
        if not self._calls.calls and not self._calls.has_streamed:
            begun = self._calls.has_begun
            why = "its call cannot be read" if begun else "no call follows its opening"
            self._reject(why, is_text_to_the_end=begun)
        elif self._calls.is_broken:
            self._accept("its last call cannot be read")
            self._resume_text(follows_call=False)
            self._read = self._read_rest
        elif self._calls.has_streamed or self._calls.is_closed:
            self._accept()
            self._resume_text(follows_call=True)
        else:
            self._text = FreeText(self._markers, follows_call=True)
            self._following = ""
            self._num_call_pieces = len(self._block)
            self._read = self._read_following

    def _read_following(self, text: str, start: int) -> int:
        """Reads the text behind calls while it is not known whether they end there."""
        position = self._text.feed(text, start)
        self._block.append(text[start:position])
        if self._text.found in self._inner_closings and not self._text.has_text:
            self._text = FreeText(self._markers, follows_call=True)
            return position
        if self._text.found is not None and not self._confirms():
            self._text.reject()
        self._following += self._text.take()
        if self._following and not self._is_apart():
            self._reject("text joins its calls", is_text_to_the_end=True)
            return position
        if self._text.found is not None and not self._following:
            self._accept()
            self._follows_call = True
            return self._found(position)
        if self._needs_closing and self._following:
            self._reject("text stands where it has to be closed", is_text_to_the_end=True)
        elif self._text.found is not None or "\n" in self._following:
            return self._resume(position) if self._judge() else position
        return position

    def _resume(self, position: int) -> int:
        """The calls were followed by a line of text, which has been sent."""
        self._follows_call, self._read = False, self._read_text
        return position if self._text.found is None else self._found(position)

    def _judge(self) -> bool:
        """Whether the text behind the calls is answer text, and not a rest of them. Sends both."""
        assert self._calls is not None
        line = self._following.partition("\n")[0]
        is_prose = not _CALL_CHARACTERS.intersection(line) and not self._needs_closing
        is_text = is_prose and self._is_apart() and not self._calls.tail.strip()
        if self._following and not is_text:
            why = "what follows its calls may be a part of them"
            self._reject(why, is_text_to_the_end=True)
            return False
        following = self._following
        self._accept()
        self._parts.add_text(following)
        return True

    def _is_apart(self) -> bool:
        """Whether white space stands between the calls and what follows them."""
        assert self._calls is not None
        behind = [self._calls.tail, *self._block[self._num_call_pieces :]]
        return "".join(behind)[:1].isspace()

    def _accept(self, refusal: str = "") -> None:
        """``refusal``: why the rest of the block is text."""
        assert self._calls is not None
        self._report(tuple(self._calls.calls), refusal)
        for call in self._calls.calls:
            self._parts.start_call(call.name)
            self._parts.add_arguments(call.arguments)
        tail = self._calls.tail
        self._parts.add_text(tail if tail.strip() else "")
        self._calls = None
        self._block.clear()
        self._following = ""

    def _reject(self, refusal: str, *, is_text_to_the_end: bool) -> None:
        self._report((), refusal)
        self._parts.add_text("".join(self._block))
        self._block.clear()
        self._resume_text(follows_call=False)
        if is_text_to_the_end:
            self._read = self._read_rest

    def _report(self, calls: tuple[ReadCall, ...], refusal: str) -> None:
        if self.on_decision is not None:
            has_streamed = self._calls is not None and self._calls.has_streamed
            self.on_decision(Decision("".join(self._block), calls, refusal, has_streamed))

    def _read_rest(self, text: str, position: int) -> int:
        self._parts.add_text(text[position:])
        return len(text)

    def _resume_text(self, *, follows_call: bool) -> None:
        self._text = FreeText(self._markers, follows_call=follows_call, has_text=not follows_call)
        self._follows_call = follows_call
        self._needs_closing = False
        self._calls = None
        self._lead.clear()
        self._read = self._read_text


class Opening(NamedTuple):
    """Where calls begin: a marker, and the first character behind it. ``stream``: where arguments
    go as they are generated, if at all."""

    marker: str
    character: str
    tools: KnownTools
    stream: PartList | None


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
    """The openings behind whose calls a closing marker, another opening or the end of the answer
    must come; ``None``: all of them where there are closing markers."""
    inner: Collection[str] = ()
    """The closing markers of one call in a section, after which the section continues."""

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return MarkedCallParser(self, KnownTools(tools))

    @abstractmethod
    def reader(self, at: Opening) -> CallReader: ...


class MarkedCallParser(CallParser):
    """Free text with calls behind markers, as in most formats.

        text ──marker──▶ first character ──▶ reader of calls ──▶ closing marker, or text
                         selects one

    Whitespace around the calls is left out, and so are the closing markers behind them.
    """

    def __init__(self, call_format: MarkedFormat, tools: KnownTools) -> None:
        openings, closings, closed = call_format.openings, call_format.closings, call_format.closed
        super().__init__([*openings, *closings])
        self._format = call_format
        self._tools = tools
        self._inner_closings = call_format.inner
        self._closed = openings if closed is None and closings else closed or ()

    def _found(self, position: int) -> int:
        self._parts.add_text(self._text.take())
        marker = self._text.found
        assert marker is not None
        if marker in self._format.closings:
            self._close()
        else:
            self._needs_closing = self._needs_closing or marker in self._closed
            self._lead = [self._text.space, marker]
            self._read = self._read_first
        return position

    def _close(self) -> None:
        """A closing marker is text where it closes nothing."""
        closes = self._follows_call and not self._text.has_text
        if not closes:
            self._text.reject()
            self._parts.add_text(self._text.take())
        self._resume_text(follows_call=closes)

    def _read_first(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            self._lead.append(text[position])
            return position + 1
        at = Opening(self._lead[1], text[position], self._tools, self._stream)
        self._begin_calls(self._format.reader(at), "".join(self._lead))
        return position
