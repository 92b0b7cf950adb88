"""Gemma: calls in a notation of their own, as FunctionGemma and Gemma 4 write them.

    <start_function_call>call:f{city:<escape>Paris<escape>,days:3}<end_function_call>
    <|tool_call>call:f{city:<|"|>Paris<|"|>,days:3}<tool_call|>

Gemma 3 has no format of its own: its templates ask for JSON or Python, as Llama's do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

from inference.text.tool_calls.argument_values import is_text
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.gemma_grammar import CALL, GemmaMarkers, gemma_rules
from inference.text.tool_calls.grammar_rules import WantedCalls
from inference.text.tool_calls.headed_call import HeadedCall, plain_name
from inference.text.tool_calls.json_text import (
    CLOSERS,
    MAX_DEPTH,
    MAX_SCALAR_LENGTH,
    NUMBER,
    WHITESPACE,
    ReadState,
    compact_json,
    repaired_string,
)

BROKEN_NUMBER = re.compile(r"[+-].*|\.[0-9].*|[0-9]+\.|[0-9.]+[^0-9.:/-].*")
"""What may have been a number before a character was lost or added."""
FUNCTION_GEMMA = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>')

_LITERALS = {"True": "true", "False": "false", "None": "null"}
_BARE_TEXT = re.compile(r"""[\w./~+$@-][^<>"'`|:{}()\[\]\\#=]*""")
_BARE_KEY = re.compile(r"""[^\s<>"'|\\]+""")
_COLON = re.compile(f"[{WHITESPACE}]*:")
_IN_JSON_STRING = re.compile(r'["\\]')


class GemmaFormat(MarkedFormat):
    name = "gemma"

    def __init__(self, markers: GemmaMarkers) -> None:
        self.openings = (markers.opens,)
        self.closings = (markers.closes,)
        self.markers = (markers.opens, markers.closes, markers.quote)
        self._gemma = markers

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        return GemmaCall(tools, quote=self._gemma.quote)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        return gemma_rules(wanted, self._gemma)


class GemmaCall(HeadedCall):
    def __init__(self, tools: KnownTools, *, quote: str) -> None:
        super().__init__(
            name_of=lambda head: plain_name(head.strip(WHITESPACE)), tools=tools, opening=CALL
        )
        self._quote = quote
        self._block = ArgumentsBlock(quote)

    def _begin_arguments(self) -> ArgumentsBlock:
        return self._block

    def _end_arguments(self, position: int) -> int:
        try:
            self._add_call(arguments_as_json(self._block.text, self._quote, self._takes_bare_text))
        except ValueError:
            return self._break(position)
        return self._end(position)

    def _takes_bare_text(self, key: str | None, bare: str) -> bool:
        """Whether a bare word is a text that lacks its quotes, and not a broken number or literal.
        ``key``: the argument's; ``None`` inside of one. Without a schema, what may be a broken
        number has two readings."""
        if self._name not in self._tools:
            return BROKEN_NUMBER.fullmatch(bare) is None
        properties = self._tools.properties(self._name)
        return (
            key is not None
            and key in properties
            and is_text(properties[key], self._tools.schema(self._name))
        )


class ArgumentsBlock:
    """Holds the arguments back and finds their end: counts brackets outside of texts, which stand
    between quote markers, or in JSON's own quotes."""

    def __init__(self, quote: str) -> None:
        self.state = ReadState.RUNNING
        self.text = ""
        self._quote = quote
        self._counted = 0
        """Up to here brackets are counted."""
        self._open: list[str] = []
        # A JSON quote is none inside of a marker that is not whole yet.
        inside, _, _ = quote.rpartition('"')
        json_quote = f'(?<!{re.escape(inside)})"' if inside else '"'
        self._outside = re.compile(rf"{re.escape(quote)}|{json_quote}|[{{}}\[\],]")
        self._next = self._outside
        """What is looked for."""

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        num_before = len(self.text)
        self.text += text[start:]
        # A marker may have begun in the text before.
        position = max(self._counted, num_before - len(self._quote))
        while self.state is ReadState.RUNNING:
            found = self._next.search(self.text, position)
            if found is None:
                is_bare = self._next is self._outside
                if is_bare and len(self.text) - self._counted > MAX_SCALAR_LENGTH:
                    self.state = ReadState.BROKEN
                return len(text)
            self._counted = found.end()
            self._read(found.group())
            position = self._counted
        self.text = self.text[: self._counted]
        return start + self._counted - num_before

    def _read(self, mark: str) -> None:
        if self._next is not self._outside:
            if mark == "\\":
                self._counted += 1
            else:
                self._next = self._outside
        elif mark == self._quote:
            self._next = re.compile(re.escape(mark))
        elif mark == '"':
            self._next = _IN_JSON_STRING
        elif mark in CLOSERS:
            self._open.append(CLOSERS[mark])
            self.state = ReadState.BROKEN if len(self._open) > MAX_DEPTH else self.state
        elif mark != ",":
            is_matching = self._open.pop() == mark
            if not is_matching or not self._open:
                self.state = ReadState.COMPLETE if is_matching else ReadState.BROKEN


def arguments_as_json(
    written: str, quote: str, takes_bare_text: Callable[[str | None, str], bool]
) -> str:
    """A whole block of arguments as a JSON object.

        {city:<escape>Paris<escape>,days:3,near:[{lat:1.5}]}  ─▶  {"city":"Paris","days":3,…}

    Keys are bare, texts stand between quote markers and know no escapes. Texts and keys in JSON's
    own quotes are read as well. A bare value that is no number, true, false or null is a text where
    ``takes_bare_text`` says so, given the argument's key, or ``None`` inside of an argument, and
    where none of its characters may be a rest of the call. Raises ``ValueError`` for other text;
    what is returned may still be no JSON.
    """
    marked = re.escape(quote)
    token = re.compile(
        rf'{marked}(?P<text>.*?){marked}|(?P<json>"(?:[^"\\]|\\.)*")|(?P<mark>[{{}}\[\]:,])'
        rf"|(?P<space>[{WHITESPACE}]+)|(?P<bare>[^{WHITESPACE}<\"{{}}\[\]:,][^<\"{{}}\[\]:,]*)",
        re.DOTALL,
    )
    read: list[str] = []
    key: str | None = None
    depth, position = 0, 0
    while position < len(written):
        found = token.match(written, position)
        if found is None:
            raise ValueError("no value")
        position = found.end()
        is_key = _COLON.match(written, position) is not None
        piece = found.group()
        match found.lastgroup:
            case "space":
                continue
            case "mark":
                depth += (piece in CLOSERS) - (piece in CLOSERS.values())
            case "text":
                piece = compact_json(found["text"])
            case "json":
                piece = repaired_string(piece)
            case "bare" if is_key:
                piece = _key(piece.strip(WHITESPACE))
            case _:
                argument = key if depth == 1 else None
                piece = _bare_value(piece.strip(WHITESPACE), partial(takes_bare_text, argument))
        if is_key and found.lastgroup != "mark":
            key = json.loads(piece)
        read.append(piece)
    return "".join(read)


def _key(bare: str) -> str:
    if not _BARE_KEY.fullmatch(bare):
        raise ValueError("no key")
    return compact_json(bare)


def _bare_value(bare: str, takes_text: Callable[[str], bool]) -> str:
    value = _LITERALS.get(bare, bare)
    if value in _LITERALS.values() or NUMBER.fullmatch(value):
        return value
    if len(bare) > MAX_SCALAR_LENGTH or not _BARE_TEXT.fullmatch(bare) or not takes_text(bare):
        raise ValueError("neither a value nor a text")
    return compact_json(bare)
