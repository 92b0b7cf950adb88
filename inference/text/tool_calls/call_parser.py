"""The base of every format, and the parser of all of them, which reads free text with calls in it.

    text ──marker──▶ may begin a call? ──▶ next marker, or the answer's end ──▶ parsed ──▶ text
     ▲                    │ no                    ▲         │ not yet              │ no
     └────────────────────┘                       └─────────┘                      └──▶ all text

A block is calls only where what follows cannot be a part of them. A broken block is text, and so is
the rest of the answer: a string of a broken call may hold another call's text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import (
    WHITESPACE,
    JsonCopy,
    KnownTools,
    compact_json,
)
from inference.text.tool_calls.grammar_rules import (
    WantedCalls,
    callable_tools,
)

_CALL_CHARACTERS = frozenset('"{}[]:<>=')
"""Characters of a call's remains, rare in prose."""
_SEPARATORS = WHITESPACE + ",;"
_BEHIND_STREAMED = re.compile(r"[\s}\],;`]*(?P<other>[^\s}\],;`{])?")
MAX_FOREIGN_LENGTH = 1_000
"""A longer block is not searched for what makes it none; it is parsed when it may be whole."""
MAX_TRIES = 8
"""Markers at which a block is parsed before it is held back to the answer's end."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The name is whole. The call before it is complete."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A call's pieces concatenate to one valid JSON object once the next call starts or the parser
    is flushed, except where the answer's end cuts off a streamed one."""

    fragment: str


Part = TextPart | CallStarted | CallArguments


class ReadCall(NamedTuple):
    name: str
    arguments: str
    """A JSON object."""

    @classmethod
    def of(cls, name: str, arguments: dict[str, Any]) -> ReadCall:
        """Raises ``ValueError`` for numbers that JSON does not have."""
        return cls(name, compact_json(arguments))


class Parsed(NamedTuple):
    calls: Sequence[ReadCall]
    end: int


class Decision(NamedTuple):
    block: str
    calls: Sequence[ReadCall]
    """Streamed ones are left out."""
    refusal: str
    has_streamed: bool = False
    """Calls of it were sent as they were generated."""


Head = Callable[[str, int], tuple[str, int] | None]


class Notation(NamedTuple):
    """One way to write the calls of a block. Texts begin behind its marker."""

    begins: Callable[[str], bool | None]
    """``None``: more text has to tell."""
    parse: Callable[[str], Parsed | None]
    """``None``: no calls, or not whole."""
    head: Head | None = None
    """Returns the name and where the arguments begin, for arguments that can be streamed."""
    foreign: re.Pattern[str] | None = None
    """Text that began like a call and is none for certain."""


def begins_by(pattern: re.Pattern[str]) -> Callable[[str], bool | None]:
    """``pattern`` matches every beginning of a call, with the group ``begun`` once it is one."""

    def begins(text: str) -> bool | None:
        found = pattern.match(text)
        assert found is not None
        return True if found["begun"] else None if found.end() == len(text) else False

    return begins


class CallFormat(ABC):
    name: str
    markers: Sequence[str] = ()
    """These may be tokens."""
    openings: Sequence[str] = ()
    bare: Collection[str] = ()
    """These openings are a part of the calls."""
    closings: Sequence[str] = ()

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return tokenizer.special_token_ids.intersection(self.marker_ids(tokenizer).values())

    def marker_ids(self, tokenizer: Tokenizer) -> dict[str, int]:
        found = {marker: tokenizer.single_token_id(marker) for marker in self.markers}
        return {marker: one for marker, one in found.items() if one is not None}

    def parser(self, tools: Sequence[ToolDefinition]) -> CallParser:
        return CallParser(self, KnownTools(tools))

    @abstractmethod
    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        """``is_held``: a grammar holds the answer to calls."""

    def opens(self, marker: str, *, is_first: bool, begins_line: bool) -> bool:
        return True

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        marker_ids: Mapping[str, int],
    ) -> str | None:
        """llguidance lark text for the whole answer; ``None``: nothing is to be enforced. Raises
        ``UnsupportedSchemaError``."""
        called = callable_tools(tools, choice, parallel=parallel)
        wanted = WantedCalls(called, choice, parallel, marker_ids)
        return "\n".join(self._rules(wanted)) or None if called else None

    @abstractmethod
    def _rules(self, wanted: WantedCalls) -> list[str]:
        """Rules for the whole answer; none where it cannot be held to calls."""


class CallParser:
    """Text comes out whole, but for white space around calls and closing markers behind them."""

    def __init__(self, call_format: CallFormat, tools: KnownTools) -> None:
        self.streams_arguments = False
        """Set before the first text, and only where a grammar holds the answer to calls."""
        self.on_decision: Callable[[Decision], None] | None = None
        """Set before the first text."""
        self._format = call_format
        self._tools = tools
        self._whole, self._begun, self._ends = _patterns(
            (*call_format.openings, *call_format.closings), tuple(call_format.bare)
        )
        self._longest = max(map(len, (*call_format.openings, *call_format.closings)))
        self._step = self._find
        self._parts: list[Part] = []
        self._pending = ""
        """Undecided text; in a block all of it, behind its marker."""
        self._position = 0
        """The end of the searched or streamed text of a block."""
        self._num_tries = 0
        self._lead = ""
        self._notations: Sequence[Notation] = ()
        self._notation: Notation
        self._copy: JsonCopy | None = None
        self._follows_call = False
        """White space and closing markers belong to the call before them."""
        self._has_text = False
        self._has_ended = False

    def feed(self, text: str) -> list[Part]:
        self._pending += text
        while self._step():
            pass
        parts, self._parts = self._parts, []
        return parts

    def flush(self) -> list[Part]:
        self._has_ended = True
        return self.feed("")

    def _find(self) -> bool:
        text, start = self._pending, 0
        for found in self._whole.finditer(text):
            before, marker = text[start : found.start()], found.group()
            plain = before.rstrip(WHITESPACE)
            space = before[len(plain) :]
            if marker in self._format.closings:
                if self._follows_call and not plain:
                    start = found.end()
            elif self._format.opens(
                marker, is_first=not (self._has_text or plain), begins_line="\n" in space
            ):
                self._write(plain)
                is_bare = marker in self._format.bare
                self._pending = text[found.start() if is_bare else found.end() :]
                self._lead = space if is_bare else space + marker
                self._notations = self._format.notations(
                    marker, self._tools, is_held=self.streams_arguments
                )
                self._step = self._choose
                return True
        text = text[start:]
        begun = self._begun.search(text)
        assert begun is not None
        plain = text[: begun.start()].rstrip(WHITESPACE)
        self._write(plain)
        self._pending = text[len(plain) :]
        if self._has_ended:
            self._add_text("" if self._follows_call else self._pending)
            self._pending = ""
        return False

    def _write(self, text: str) -> None:
        if text:
            self._add_text(text.lstrip(WHITESPACE) if self._follows_call else text)
            self._follows_call, self._has_text = False, True

    def _add_text(self, text: str) -> None:
        if text:
            self._parts.append(TextPart(text))

    def _choose(self) -> bool:
        begun = [one.begins(self._pending) for one in self._notations]
        if True in begun:
            self._notation = self._notations[begun.index(True)]
            self._position, self._num_tries = 0, 0
            self._step = self._hold
        elif self._has_ended or None not in begun:
            self._refuse("no call follows its opening", self._find)
        else:
            return False
        return True

    def _hold(self) -> bool:
        notation, text = self._notation, self._pending
        if self.streams_arguments and notation.head and notation.head(text, 0):
            self._position, self._step = 0, self._stream
            return True
        is_short = len(text) < MAX_FOREIGN_LENGTH
        if is_short and notation.foreign and notation.foreign.match(text):
            return self._refuse("its call cannot be read", self._write_rest)
        while self._num_tries < MAX_TRIES and (found := self._ends.search(text, self._position)):
            self._position = found.end()
            self._num_tries += 1
            if (parsed := notation.parse(text[: found.start()])) is not None:
                return self._decide(parsed, found.start())
        # A marker may have begun.
        self._position = max(self._position, len(text) - self._longest + 1)
        if not self._has_ended:
            return False
        if (parsed := notation.parse(text)) is not None:
            return self._decide(parsed, len(text))
        return self._refuse("its call cannot be read", self._write_rest)

    def _decide(self, parsed: Parsed, end: int) -> bool:
        rest = self._pending[parsed.end : end]
        if self._has_ended and (begun := self._begun.search(rest)) is not None:
            rest = rest if rest[: begun.start()].strip() else ""
        if not rest.strip(_SEPARATORS):
            return self._accept(parsed.calls, end, rest if rest.strip(WHITESPACE) else "")
        if not rest[0].isspace():
            return self._refuse("text joins its calls", self._write_rest)
        line = rest.strip(WHITESPACE).partition("\n")[0]
        if line[0] in _SEPARATORS or _CALL_CHARACTERS.intersection(line):
            refusal = "what follows its calls may be a part of them"
            return self._refuse(refusal, self._write_rest)
        return self._accept(parsed.calls, parsed.end)

    def _stream(self) -> bool:
        text = self._pending
        if self._copy is not None:
            copied, self._position = self._copy.feed(text, self._position)
            self._parts += [CallArguments(copied)] if copied else []
            if self._copy.is_running and not self._has_ended:
                return False
            self._copy = None
        elif head := self._notation.head and self._notation.head(text, self._position):
            name, self._position = head
            self._parts.append(CallStarted(name))
            self._copy = JsonCopy()
        else:
            behind = _BEHIND_STREAMED.match(text, self._position)
            assert behind is not None
            if not (behind["other"] or self._has_ended):
                return False
            end = behind.start("other") if behind["other"] else len(text)
            self._accept((), end, has_streamed=True)
        return True

    def _accept(
        self, calls: Sequence[ReadCall], end: int, tail: str = "", *, has_streamed: bool = False
    ) -> bool:
        self._report(calls, "", end, has_streamed)
        for call in calls:
            self._parts += (CallStarted(call.name), CallArguments(call.arguments))
        self._follows_call, self._has_text = True, False
        self._add_text(tail)
        self._pending = self._pending[end:]
        self._step = self._find
        return True

    def _refuse(self, refusal: str, following: Callable[[], bool]) -> bool:
        self._report((), refusal, len(self._pending))
        self._add_text(self._lead)
        self._follows_call, self._has_text = False, True
        self._step = following
        return True

    def _write_rest(self) -> bool:
        self._add_text(self._pending)
        self._pending = ""
        return False

    def _report(
        self, calls: Sequence[ReadCall], refusal: str, end: int, has_streamed: bool = False
    ) -> None:
        if self.on_decision is not None:
            text = self._pending
            closing = next((one for one in self._format.closings if text.startswith(one, end)), "")
            block = self._lead + text[:end] + closing
            self.on_decision(Decision(block, calls, refusal, has_streamed))


@lru_cache(maxsize=64)
def _patterns(
    markers: tuple[str, ...], bare: tuple[str, ...]
) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Patterns of a marker, of its beginning at the text's end, and of one that may end a block. A
    marker's first character occurs nowhere else in it, so a failed match never hides another's
    beginning."""
    assert all(marker.count(marker[0]) == 1 for marker in markers)
    begun = "|".join(map(_beginning, markers)) or "(?!)"
    ends = [one for one in markers if one not in bare]
    return _any(markers), re.compile(rf"(?:{begun})?\Z"), _any(ends)


def _any(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _beginning(marker: str) -> str:
    """``a(?:b)?`` for ``abc``."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or "(?!)"
