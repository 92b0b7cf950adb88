"""The base of every format, and the parser of all of them, which reads free text with calls in it.

    text ──marker──▶ may begin a call? ──▶ where its block may be whole ──▶ parsed ──▶ text
     ▲                    │ no                                                │ no
     └────────────────────┘                                                   └──▶ text to the end

A block is held back until it may be whole, is parsed once, by a pure function of its text, and is
calls only where what follows them cannot be a part of them. A broken block is text, whole, and so
is the rest of the answer: a string of a broken call may hold what reads like another call.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import CallArguments, CallStarted, Part, TextPart
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import WHITESPACE, KnownTools
from inference.text.tool_calls.block_ends import Ends, JsonCopy
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    callable_tools,
    special_marker_ids,
)

_CALL_CHARACTERS = frozenset('"{}[]:<>=')
"""Characters of the remains of a call, rare in a line of prose behind a call."""
_SEPARATORS = WHITESPACE + ",;"
_BEHIND_STREAMED = re.compile(r"[\s}\],;`]*(?P<other>[^\s}\],;`{])?")


class ReadCall(NamedTuple):
    name: str
    arguments: str
    """A JSON object."""


class Parsed(NamedTuple):
    calls: Sequence[ReadCall]
    end: int
    """The position behind the calls."""
    is_broken: bool = False
    """Whether a call that is not whole follows them."""


class Decision(NamedTuple):
    block: str
    """The block's text as generated, with the text read behind it."""
    calls: tuple[ReadCall, ...]
    """The calls that were held back until the block ended; streamed ones are left out."""
    refusal: str
    """Why the block, or its rest behind its calls, is text; empty where none of it is."""
    has_streamed: bool = False
    """Whether calls of it were sent as they were generated."""


Head = Callable[[str, int], tuple[str, int] | None]


class Notation(NamedTuple):
    """One way in which a format writes the calls of a block. Texts begin behind its marker."""

    begins: Callable[[str], bool | None]
    """Whether a call has begun; ``None`` where more text has to tell."""
    ends: Callable[[str, Sequence[str]], Ends]
    """Where the block may be whole, given its beginning and the markers that end it."""
    parse: Callable[[str], Parsed | None]
    """The calls of a block that may be whole; ``None`` where it has none."""
    head: Head | None = None
    """The name in a call's text up to its arguments, and where they begin, for arguments that can
    be streamed."""
    foreign: re.Pattern[str] | None = None
    """Text that began like a call and is none for certain."""


def begins_by(pattern: re.Pattern[str]) -> Callable[[str], bool | None]:
    """``Notation.begins`` by a pattern of every beginning of a call, with the group ``begun`` where
    it is one."""

    def begins(text: str) -> bool | None:
        found = pattern.match(text)
        assert found is not None
        return True if found["begun"] else None if found.end() == len(text) else False

    return begins


class CallFormat(ABC):
    """A ``ToolFormat``. Calls stand behind one of ``openings``."""

    name: str
    markers: Sequence[str] = ()
    """Markers that may be special tokens, whose text the parser needs."""
    openings: Sequence[str] = ()
    bare: Collection[str] = ()
    """The openings that are a part of the calls."""
    closings: Sequence[str] = ()
    closed: Collection[str] = ()
    """The openings behind whose calls a closing marker, another opening or the end of the answer
    must come."""
    inner: Collection[str] = ()
    """The closing markers of one call in a section, after which the section continues."""

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, self.markers)

    def parser(self, tools: Sequence[ToolDefinition]) -> CallParser:
        return CallParser(self, KnownTools(tools))

    @abstractmethod
    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        """The notations behind an opening. ``is_held``: a grammar holds the answer to calls."""

    def opens(self, marker: str, *, is_first: bool, begins_line: bool) -> bool:
        """Whether calls may begin at an opening, for openings that texts have too."""
        return True

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        called = callable_tools(tools, choice, parallel=parallel)
        wanted = WantedCalls(called, choice, parallel, tokenizer, self.markers)
        return "\n".join(self._rules(wanted)) or None if called else None

    @abstractmethod
    def _rules(self, wanted: WantedCalls) -> list[str]:
        """Lark rules for the whole answer; none where it cannot be held to calls. Raises
        ``UnsupportedSchemaError`` for what the format cannot express."""


class CallParser:
    """A ``ToolCallParser``. Whitespace around calls is left out, and so are the closing markers
    behind them."""

    def __init__(self, call_format: CallFormat, tools: KnownTools) -> None:
        self.streams_arguments = False
        """Sends JSON arguments as they are generated. Set before the first text, and only where a
        grammar holds the answer to calls that can be read. An answer cut off by its limit leaves
        such arguments unfinished."""
        self.on_decision: Callable[[Decision], None] | None = None
        """Called for each block that has been decided. Set before the first text."""
        markers = (*call_format.openings, *call_format.closings)
        within = (*call_format.inner, *call_format.bare)
        self._format = call_format
        self._tools = tools
        self._whole, self._begun = _patterns(markers)
        self._end_markers = [one for one in markers if one not in within]
        self._parts: list[Part] = []
        self._pending = ""
        """Text that is not decided; in a block all of it, behind its marker."""
        self._lead = ""
        """The block's marker and the space before it."""
        self._follows_call = False
        """Whether a call came directly before, so that whitespace and closing markers are its."""
        self._has_text = False
        """Whether text came since the last call."""
        self._needs_closing = False
        """Whether nothing but a marker may follow the block's calls."""
        self._has_ended = False
        self._reading = self._read()

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        next(self._reading)
        parts, self._parts = self._parts, []
        return parts

    def flush(self) -> list[Part]:
        self._has_ended = True
        return self.feed("")

    # Each generator below waits for more text where it yields, until the answer has ended.

    def _read(self) -> Iterator[None]:
        while True:
            while not self._found_block():
                if self._has_ended:
                    self._add_text("" if self._follows_call else self._pending)
                    self._pending = ""
                yield
            if (notation := (yield from self._chosen())) is None:
                self._reject("no call follows its opening")
            else:
                yield from self._hold(notation)

    def _found_block(self) -> bool:
        """Free text up to an opening marker."""
        text, start = self._pending, 0
        for found in self._whole.finditer(text):
            before, marker = text[start : found.start()], found.group()
            plain = before.rstrip(WHITESPACE)
            space = before[len(plain) :]
            if marker in self._format.closings:
                if self._follows_call and not plain:
                    start, self._needs_closing = found.end(), False
            elif self._format.opens(
                marker, is_first=not (self._has_text or plain), begins_line="\n" in space
            ):
                self._write(plain)
                is_bare = marker in self._format.bare
                self._pending = text[found.start() if is_bare else found.end() :]
                self._lead = space if is_bare else space + marker
                self._needs_closing = self._needs_closing or marker in self._format.closed
                return True
        text = text[start:]
        begun = self._begun.search(text)
        assert begun is not None
        plain = text[: begun.start()].rstrip(WHITESPACE)
        self._write(plain)
        self._pending = text[len(plain) :]
        return False

    def _write(self, text: str) -> None:
        if text:
            self._add_text(text.lstrip(WHITESPACE) if self._follows_call else text)
            self._follows_call = self._needs_closing = False
            self._has_text = True

    def _add_text(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(text))

    def _chosen(self) -> Generator[None, None, Notation | None]:
        """The notation of the block's calls; ``None`` where none has begun."""
        marker = self._lead.lstrip(WHITESPACE)
        is_held = self.streams_arguments
        notations = self._format.notations(marker, self._tools, is_held=is_held)
        while True:
            begun = [one.begins(self._pending) for one in notations]
            if True in begun:
                return notations[begun.index(True)]
            if self._has_ended or None not in begun:
                return None
            yield

    def _hold(self, notation: Notation) -> Iterator[None]:
        ends = notation.ends(self._pending, self._end_markers)
        head = notation.head if self.streams_arguments else None
        while head is None or head(self._pending, 0) is None:
            end = ends.find(self._pending)
            if end is not None or self._has_ended:
                yield from self._decide(notation, len(self._pending) if end is None else end)
                return
            is_short = len(self._pending) < MAX_FOREIGN_LENGTH
            if is_short and notation.foreign and notation.foreign.match(self._pending):
                yield from self._refuse("its call cannot be read")
            yield
        yield from self._stream(head)

    def _stream(self, head: Head) -> Iterator[None]:
        position, end = 0, None
        while end is None:
            if (found := head(self._pending, position)) is not None:
                name, position = found
                self._parts.append(CallStarted(name))
                copy = JsonCopy()
                while copy.is_running and not self._has_ended:
                    copied, position = copy.feed(self._pending, position)
                    self._parts += [CallArguments(copied)] if copied else []
                    if copy.is_running:
                        yield
                continue
            behind = _BEHIND_STREAMED.match(self._pending, position)
            if behind is not None and behind["other"]:
                end = behind.start("other")
            elif self._has_ended:
                end = len(self._pending)
            else:
                yield
        self._accept(Parsed((), end), end, has_streamed=True)
        self._pending = self._pending[end:]

    # What becomes of a block.

    def _decide(self, notation: Notation, end: int) -> Iterator[None]:
        text = self._pending
        parsed = notation.parse(text[:end])
        if parsed is None:
            yield from self._refuse("its call cannot be read")
            return
        rest = text[parsed.end : end]
        if parsed.is_broken:
            self._accept(parsed, end, refusal="its last call cannot be read")
            self._pending = text[parsed.end :]
            yield from self._read_rest()
        elif (tail := self._tail(rest)) is not None:
            self._accept(parsed, end)
            self._add_text(tail)
            self._pending = text[end:]
        elif refusal := self._refusal(rest):
            yield from self._refuse(refusal, end=end)
        else:
            self._accept(parsed, end)
            self._pending = text[parsed.end :]

    def _tail(self, rest: str) -> str | None:
        """Separators behind the calls, which are text; ``None`` where other text is there."""
        for marker in self._format.inner:
            rest = rest.replace(marker, "")
        if self._has_ended and (begun := self._begun.search(rest)) is not None:
            rest = rest if rest[: begun.start()].strip() else ""
        if rest.strip(_SEPARATORS):
            return None
        return rest if rest.strip(WHITESPACE) else ""

    def _refusal(self, rest: str) -> str:
        """Why text behind calls may be a part of them; empty for a line of prose apart."""
        if not rest[0].isspace():
            return "text joins its calls"
        if self._needs_closing:
            return "text stands where it has to be closed"
        line = rest.strip(WHITESPACE).partition("\n")[0]
        is_prose = line[0] not in _SEPARATORS and not _CALL_CHARACTERS.intersection(line)
        return "" if is_prose else "what follows its calls may be a part of them"

    def _accept(
        self, parsed: Parsed, end: int, *, refusal: str = "", has_streamed: bool = False
    ) -> None:
        """``refusal``: why the rest of the block is text."""
        self._report(tuple(parsed.calls), refusal, end, has_streamed)
        for call in parsed.calls:
            self._parts += (CallStarted(call.name), CallArguments(call.arguments))
        self._follows_call, self._has_text = True, False

    def _reject(self, refusal: str, end: int | None = None) -> None:
        self._report((), refusal, len(self._pending) if end is None else end)
        self._add_text(self._lead)
        self._follows_call, self._has_text, self._needs_closing = False, True, False

    def _refuse(self, refusal: str, end: int | None = None) -> Iterator[None]:
        self._reject(refusal, end)
        yield from self._read_rest()

    def _read_rest(self) -> Iterator[None]:
        while True:
            self._add_text(self._pending)
            self._pending = ""
            yield

    def _report(
        self, calls: tuple[ReadCall, ...], refusal: str, end: int, has_streamed: bool = False
    ) -> None:
        if self.on_decision is not None:
            text, closings = self._pending, self._format.closings
            closing = next((one for one in closings if text.startswith(one, end)), "")
            block = self._lead + text[:end] + closing
            self.on_decision(Decision(block, calls, refusal, has_streamed))


MAX_FOREIGN_LENGTH = 1_000
"""A longer block is not searched for what makes it none; it is parsed when it is whole."""


@lru_cache(maxsize=64)
def _patterns(markers: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A marker, and what may become one at the text's end. The first character of a marker occurs
    nowhere else in it, so that a match that fails never hides the beginning of another. Where
    markers begin alike, none may be the beginning of another."""
    assert all(marker.count(marker[0]) == 1 for marker in markers)
    begun = "|".join(map(_beginning, markers)) or "(?!)"
    whole = "|".join(map(re.escape, markers)) or "(?!)"
    return re.compile(whole), re.compile(rf"(?:{begun})?\Z")


def _beginning(marker: str) -> str:
    """``a(?:b)?`` for ``abc``."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or "(?!)"
