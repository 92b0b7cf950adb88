"""One call written as a JSON object, ``{"name": …, "arguments": {…}}``, read as it is generated.

    name read, arguments begin ─▶ CallStarted ─▶ CallArguments, as they come
    any other order or shape   ─▶ held back until the object is whole, then repaired or BROKEN

A call that has started never becomes BROKEN. Knows no markers.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from inference.text.tool_calls.arguments_stream import ArgumentsStream
from inference.text.tool_calls.call_repairs import (
    ARGUMENTS_KEYS,
    CALL_KEYS,
    is_name,
    resolve_call,
)
from inference.text.tool_calls.json_scanner import WHITESPACE, JsonScanner, ReadState
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList


class JsonCall:
    """``is_marked``: it stands between markers; without them, an object with other keys than a
    call's is taken for the answer itself, at the first such key."""

    def __init__(self, tools: KnownTools, parts: PartList, *, is_marked: bool) -> None:
        self.state = ReadState.RUNNING
        self.has_started = False
        self._tools = tools
        self._parts = parts
        self._is_marked = is_marked
        self._read: Callable[[str, int], int] = self._read_opening
        self._members: dict[str, object] = {}
        self._key = ""
        self._scanner = JsonScanner()
        self._arguments: ArgumentsStream | None = None

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, after the object, or
        at the first character that cannot belong to it."""
        position = start
        while position < len(text) and self.state is ReadState.RUNNING:
            position = self._read(text, position)
        return position

    def close(self) -> None:
        """The answer has ended inside the object."""
        if self._arguments is not None and self._arguments.is_running:
            self._arguments.close()
        self._stop()

    def _read_opening(self, text: str, position: int) -> int:
        if text[position] != "{":
            return self._stop(position)
        self._read = self._read_second_opening
        return position + 1

    def _read_second_opening(self, text: str, position: int) -> int:
        """Some templates show calls in doubled braces, and models follow them."""
        self._read = self._read_key
        return position + 1 if text[position] == "{" else position

    def _read_key(self, text: str, position: int) -> int:
        """After the opening brace or a comma."""
        character = text[position]
        if character == '"':
            self._scanner = JsonScanner()
            self._read = self._read_key_text
            return position
        if character == "}":
            return self._end(position + 1)
        return position + 1 if character in WHITESPACE else self._stop(position)

    def _read_key_text(self, text: str, position: int) -> int:
        position = self._scanner.feed(text, position)
        if self._scanner.state is ReadState.COMPLETE:
            self._key = json.loads(self._scanner.take())
            self._read = self._read_colon
            if not self._is_marked and not self.has_started and self._key not in CALL_KEYS:
                return self._stop(position)
        return position

    def _read_colon(self, text: str, position: int) -> int:
        character = text[position]
        if character == ":":
            self._read = self._read_value_start
            return position + 1
        return position + 1 if character in WHITESPACE else self._stop(position)

    def _read_value_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        name = self._members.get("name")
        if (
            character == "{"
            and self._key in ARGUMENTS_KEYS
            and is_name(name)
            and not self.has_started
        ):
            self.has_started = True
            self._parts.start_call(str(name))
            self._arguments = ArgumentsStream(self._parts)
            self._read = self._read_arguments
        else:
            self._scanner = JsonScanner()
            self._read = self._read_value
        return position

    def _read_arguments(self, text: str, position: int) -> int:
        assert self._arguments is not None
        position = self._arguments.feed(text, position)
        if not self._arguments.is_running:
            self._read = self._read_after
        return position

    def _read_value(self, text: str, position: int) -> int:
        position = self._scanner.feed(text, position)
        match self._scanner.state:
            case ReadState.BROKEN:
                return self._stop(position)
            case ReadState.COMPLETE:
                self._members[self._key] = json.loads(self._scanner.take())
                self._read = self._read_after
        return position

    def _read_after(self, text: str, position: int) -> int:
        character = text[position]
        if character == "}":
            return self._end(position + 1)
        if character == ",":
            self._read = self._read_key
            return position + 1
        return position + 1 if character in WHITESPACE else self._stop(position)

    def _end(self, position: int) -> int:
        """The object is whole."""
        if not self.has_started:
            call = resolve_call(self._members, self._tools, is_marked=self._is_marked)
            if call is None:
                return self._stop(position)
            self.has_started = True
            self._parts.start_call(call.name)
            self._parts.add_arguments(call.arguments)
        self.state = ReadState.COMPLETE
        return position

    def _stop(self, position: int = 0) -> int:
        self.state = ReadState.COMPLETE if self.has_started else ReadState.BROKEN
        return position
