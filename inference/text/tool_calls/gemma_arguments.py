"""The arguments of a Gemma call, to a JSON object, as they are generated.

    {city:<escape>Paris<escape>,days:3,near:[{lat:1.5}]}  ─▶  {"city":"Paris","days":3,…}

Keys are bare, texts stand between quote markers and know no escapes. Texts and keys in JSON's own
quotes are read as well. A bare value that is no number, true, false or null is a text where
the tool takes nothing else there and none of its characters may be a rest of the call. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.json_scanner import (
    MAX_DEPTH,
    MAX_SCALAR_LENGTH,
    WHITESPACE,
    JsonScanner,
    ReadState,
    compact_json,
)

_CLOSERS = {"{": "}", "[": "]"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_BARE_TEXT = re.compile(r"""[\w./~+$@-][^<>"'`|:{}()\[\]\\#=]*""")
_BARE_KEY = re.compile(r"""[^\s<>"'|\\]+""")
_BARE_RUN = re.compile(r"[^,\]}]+")
_KEY_RUN = re.compile(r"[^:,{}\[\]]+")


class GemmaArguments:
    """Like a ``JsonScanner``: ``take`` is JSON text that is valid once ``state`` is complete."""

    def __init__(
        self,
        quotes: Sequence[str],
        *,
        takes_bare_text: Callable[[str | None, str], bool] = lambda key, bare: True,
    ) -> None:
        """``takes_bare_text``: whether an argument may be a text without quotes, given its key and
        the word; a key of ``None`` stands for a value inside of another."""
        self.state = ReadState.RUNNING
        self._quotes = quotes
        self._takes_bare_text = takes_bare_text
        self._key = ""
        self._read: Callable[[str, int], int] = self._read_value
        self._written: list[str] = []
        self._member = ""
        """Comma and key of a value that has not begun."""
        self._open: list[str] = []
        self._bare = ""
        self._text = FreeText(quotes)
        self._quoted = JsonScanner()
        self._is_key = False

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        position = start
        while position < len(text) and self.state is ReadState.RUNNING:
            position = self._read(text, position)
        return position

    def take(self) -> str:
        written = "".join(self._written)
        self._written.clear()
        return written

    def _read_value(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        if character in _CLOSERS:
            if len(self._open) == MAX_DEPTH:
                return self._break(position)
            self._begin_value(character)
            self._open.append(_CLOSERS[character])
            self._read = self._read_first
            return position + 1
        return self._begin_text(character, position, is_key=False)

    def _begin_text(self, character: str, position: int, *, is_key: bool) -> int:
        """A text between markers, in JSON's quotes, or bare."""
        self._is_key, self._bare = is_key, ""
        if character == '"':
            self._quoted = JsonScanner()
            if not is_key:
                self._begin_value("")
            self._read = self._read_quoted
        else:
            self._read = self._read_bare
        return position

    def _read_first(self, text: str, position: int) -> int:
        """Reads what follows an opening bracket or a comma: a value, a key, or the end."""
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        if character == self._open[-1] and not self._member:
            return self._end_container(position)
        if self._open[-1] == "]":
            self._read = self._read_value
            return position
        return self._begin_text(character, position, is_key=True)

    def _read_bare(self, text: str, position: int) -> int:
        run = (_KEY_RUN if self._is_key else _BARE_RUN).match(text, position)
        for character in run.group() if run else "":
            self._bare += character
            position += 1
            quote = next((one for one in self._quotes if self._bare == one), None)
            if quote is not None:
                return self._begin_quoted_text(quote, position)
            if len(self._bare) > MAX_SCALAR_LENGTH:
                return self._break(position)
        if position < len(text):
            return self._end_bare(text[position], position)
        return position

    def _begin_quoted_text(self, quote: str, position: int) -> int:
        self._text = FreeText((quote,))
        self._bare = ""
        if not self._is_key:
            self._begin_value('"')
        self._read = self._read_text
        return position

    def _end_bare(self, character: str, position: int) -> int:
        bare, self._bare = self._bare.strip(WHITESPACE), ""
        if self._is_key:
            if character != ":" or not _BARE_KEY.fullmatch(bare):
                return self._break(position)
            self._set_key(compact_json(bare))
            self._read = self._read_value
            return position + 1
        value = _LITERALS.get(bare, bare)
        if value not in _LITERALS.values() and not _NUMBER.fullmatch(value):
            if not _BARE_TEXT.fullmatch(bare) or not self._may_be_text(bare):
                return self._break(position)
            value = compact_json(bare)
        self._begin_value(value)
        self._end_value()
        return position

    def _may_be_text(self, bare: str) -> bool:
        is_argument = self._open == ["}"]
        return self._takes_bare_text(json.loads(self._key) if is_argument else None, bare)

    def _read_text(self, text: str, position: int) -> int:
        position = self._text.feed(text, position)
        piece = self._text.take()
        if self._text.found is not None:
            piece += self._text.space
        if self._is_key:
            self._bare += piece
        else:
            self._written.append(compact_json(piece)[1:-1])
        if self._text.found is not None:
            self._end_text(compact_json(self._bare))
        return position

    def _read_quoted(self, text: str, position: int) -> int:
        position = self._quoted.feed(text, position)
        piece = self._quoted.take()
        if self._is_key:
            self._bare += piece
        else:
            self._written.append(piece)
        if self._quoted.state is not ReadState.RUNNING:
            self._end_text(self._bare, is_open=False)
        return position

    def _end_text(self, key: str, *, is_open: bool = True) -> None:
        if self._is_key:
            self._set_key(key)
            self._read = self._read_colon
            return
        if is_open:
            self._written.append('"')
        self._end_value()

    def _read_colon(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return position + 1
        if text[position] != ":":
            return self._break(position)
        self._read = self._read_value
        return position + 1

    def _read_after(self, text: str, position: int) -> int:
        """Reads what follows a value inside a container."""
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        if character == self._open[-1]:
            return self._end_container(position)
        if character != ",":
            return self._break(position)
        self._member = ","
        self._read = self._read_first
        return position + 1

    def _set_key(self, key: str) -> None:
        self._key = key
        self._member += f"{key}:"
        self._bare = ""

    def _begin_value(self, written: str) -> None:
        self._written += [self._member, written]
        self._member = ""

    def _end_container(self, position: int) -> int:
        self._member = ""
        self._written.append(self._open.pop())
        self._end_value()
        return position + 1

    def _end_value(self) -> None:
        if self._open:
            self._read = self._read_after
        else:
            self.state = ReadState.COMPLETE

    def _break(self, position: int) -> int:
        self.state = ReadState.BROKEN
        return position
