"""Calls written as JSON in a row, as three formats have them: objects, or lists of objects.

    {…}      {…}; {…}      {…}\\n{…}      [{…}, {…}]

Up to three closing braces too many after an object are left out, as models write them. Whitespace
around the calls is the format's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from inference.text.tool_calls.arguments_stream import ArgumentsStream
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools, ReadCall
from inference.text.tool_calls.call_repairs import (
    ARGUMENTS_KEYS,
    CALL_KEYS,
    ResolvedCall,
    has_objects,
    is_name,
    resolve_call,
)
from inference.text.tool_calls.json_scanner import (
    WHITESPACE,
    JsonScanner,
    ReadState,
    compact_json,
    read_json,
)

NO_SYNONYMS: Mapping[str, str] = MappingProxyType({})


class JsonCall:
    """One call written as a JSON object, ``{"name": …, "arguments": {…}}``.

        object whole            ─▶ resolved, as ``call_repairs`` understands it, or BROKEN
        a brace too few         ─▶ the same, where it can only be the last one
        where a grammar holds   ─▶ CallStarted with the name, CallArguments as they come
        the answer to calls

    ``is_marked``: it stands between markers; without them, an object with other keys than a
    call's is taken for the answer itself, at the first such key. ``synonyms``: the format's keys,
    and those of a call that they stand for.
    """

    def __init__(
        self,
        tools: KnownTools,
        *,
        is_marked: bool,
        stream: PartList | None = None,
        synonyms: Mapping[str, str] = NO_SYNONYMS,
    ) -> None:
        self.state = ReadState.RUNNING
        self.result: ReadCall | None = None
        """The call, once the object is complete; it may have been streamed instead."""
        self.has_begun = is_marked
        self.has_streamed = False
        self.lacks_brace = False
        """Whether the object ended without its own closing brace."""
        self._has_two_openings = False
        self.is_no_call = False
        """Whether its first key is none of a call's, or it has no key."""
        self._tools = tools
        self._is_marked = is_marked
        self._stream = stream
        self._read: Callable[[str, int], int] = self._read_opening
        self._members: dict[str, Any] = {}
        self._has_trailing_comma = False
        self._arguments_key = self._arguments_text = ""
        self._value: list[str] = []
        self._key = ""
        self._synonyms = synonyms
        self._scanner = JsonScanner()
        self._arguments: ArgumentsStream | None = None

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, after the object, or
        at the first character that cannot belong to it."""
        position = start
        while position < len(text) and self.state is ReadState.RUNNING:
            position = self._read(text, position)
        return position

    @property
    def may_lack_opening(self) -> bool:
        """Whether one brace more behind the object may be the end of an object inside of it, whose
        beginning is missing."""
        inner = (self._members.get(key) for key in (*ARGUMENTS_KEYS, "function"))
        has_inner = any(isinstance(one, dict) for one in inner)
        return not (self.has_streamed or has_inner or self._has_two_openings)

    def close(self) -> None:
        """The answer has ended inside the object."""
        self._stop(0)

    def _read_opening(self, text: str, position: int) -> int:
        if text[position] != "{":
            return self._stop(position)
        self._read = self._read_second_opening
        return position + 1

    def _read_second_opening(self, text: str, position: int) -> int:
        """Some templates show calls in doubled braces, and models follow them."""
        self._read = self._read_key
        self._has_two_openings = text[position] == "{"
        return position + 1 if self._has_two_openings else position

    def _read_key(self, text: str, position: int) -> int:
        """Reads what follows the opening brace or a comma."""
        character = text[position]
        if character == '"':
            self.has_begun = True
            self._scanner = JsonScanner()
            self._read = self._read_key_text
            return position
        if character == "}":
            self._has_trailing_comma = self._has_trailing_comma or bool(self._members)
            self.is_no_call |= not self._members
            return self._end(position + 1)
        return position + 1 if character in WHITESPACE else self._stop(position)

    def _read_key_text(self, text: str, position: int) -> int:
        position = self._scanner.feed(text, position)
        if self._scanner.state is ReadState.COMPLETE:
            written = read_json(self._scanner.take())
            self._key = self._synonyms.get(written, written)
            self.is_no_call |= not self._members and self._key not in CALL_KEYS
            self._read = self._read_colon
            is_unknown = not self._is_marked and self._key not in CALL_KEYS
            if self._key in self._members or is_unknown:
                return self._break(position)
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
        is_streamed = character == "{" and self._key in ARGUMENTS_KEYS and is_name(name)
        if self._stream is not None and is_streamed and not self.has_streamed:
            self.has_streamed = True
            self._stream.start_call(str(name))
            self._arguments = ArgumentsStream(self._stream)
            self._read = self._read_streamed
        else:
            self._scanner, self._value = JsonScanner(), []
            self._read = self._read_value
        return position

    def _read_streamed(self, text: str, position: int) -> int:
        assert self._arguments is not None
        position = self._arguments.feed(text, position)
        if self._arguments.state is ReadState.BROKEN:
            return self._break(position)
        if self._arguments.state is ReadState.COMPLETE:
            self._read = self._read_after
        return position

    def _read_value(self, text: str, position: int) -> int:
        position = self._scanner.feed(text, position)
        self._value.append(self._scanner.take())
        match self._scanner.state:
            case ReadState.BROKEN:
                return self._break(position)
            case ReadState.COMPLETE:
                return self._take_value(position)
        return position

    def _take_value(self, position: int) -> int:
        self._has_trailing_comma |= self._scanner.has_trailing_comma
        written = "".join(self._value)
        if self._key in ARGUMENTS_KEYS:
            self._arguments_key, self._arguments_text = self._key, written
        try:
            self._members[self._key] = read_json(written)
        except ValueError:
            return self._break(position)
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
        if not self.has_streamed:
            call = resolve_call(self._members, self._tools, is_marked=self._is_marked)
            self.result = None if call is None else self._written(call)
            if self.result is None:
                return self._break(position)
        self.state = ReadState.COMPLETE
        return position

    def _written(self, call: ResolvedCall) -> ReadCall | None:
        """The arguments as they were written, unless a repair has changed them."""
        is_kept = call.arguments is self._members.get(self._arguments_key)
        try:
            written = self._arguments_text if is_kept else compact_json(call.arguments)
        except (ValueError, RecursionError):
            return None
        may_lack = self._has_trailing_comma and not self._tools.may_be_all(call.name, written)
        return None if may_lack else ReadCall(call.name, written)

    def _stop(self, position: int) -> int:
        """Ends a call whose object ends without its brace. Inside of arguments with objects of
        their own the missing one could be any of theirs."""
        arguments = self._members.get(self._key)
        is_whole = self._read == self._read_after and self._key in ARGUMENTS_KEYS
        is_whole = is_whole and not self._has_trailing_comma
        if is_whole and isinstance(arguments, dict) and not has_objects(arguments):
            self.lacks_brace = True
            return self._end(position)
        return self._break(position)

    def _break(self, position: int) -> int:
        self.state = ReadState.COMPLETE if self.has_streamed else ReadState.BROKEN
        return position


MAX_EXTRA_BRACES = 3


class JsonCalls(CallReader):
    def __init__(
        self,
        tools: KnownTools,
        *,
        is_marked: bool = True,
        stream: PartList | None = None,
        synonyms: Mapping[str, str] = NO_SYNONYMS,
    ) -> None:
        """``is_marked``: the calls stand behind a marker. ``stream``: where arguments go as they
        are generated. ``synonyms``: the format's keys, and a call's that they stand for."""
        super().__init__()
        self._tools = tools
        self._is_marked = is_marked
        self._stream = stream
        self._synonyms = synonyms
        self._is_list = False
        self._num_extra_braces = 0
        self._lacks_brace = False
        """Whether the last call's object ended without its brace."""
        self._may_lack_opening = False
        """Whether a brace behind the last call's object may be of one that is missing inside."""
        self._is_apart = True
        """Whether anything stands between the call that is read and the one before it. Otherwise it
        is not known where one ends and the other begins."""
        self._is_on_the_line = False
        """Whether it begins on the line on which that one ends, so that it may be a part of it."""
        self._call: JsonCall | None = None
        self._read = self._read_start

    def close(self) -> None:
        if self._call is None:
            self._end()
            return
        self._call.close()
        self._end_call()
        self._end()

    def _read_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE or (character == "[" and not self._is_list):
            self._is_list = self._is_list or character == "["
            return position + 1
        return self._begin_call(position) if character == "{" else self._end(position)

    def _begin_call(self, position: int) -> int:
        self._call = JsonCall(
            self._tools,
            is_marked=self._is_marked,
            stream=self._stream,
            synonyms=self._synonyms,
        )
        self._read = self._read_call
        return position

    def _read_call(self, text: str, start: int) -> int:
        assert self._call is not None
        position = self._call.feed(text, start)
        self._tail.append(text[start:position])
        if self._call.state is not ReadState.RUNNING:
            self._end_call()
        return position

    def _end_call(self) -> None:
        assert self._call is not None
        call, self._call = self._call, None
        self.has_begun = self.has_begun or call.has_begun
        self.has_streamed = self.has_streamed or call.has_streamed
        if call.result is not None:
            self.calls.append(call.result)
            self._lacks_brace = call.lacks_brace
            self._may_lack_opening = call.may_lack_opening
        elif not call.has_streamed:
            if not self._is_apart or (call.is_no_call and self._is_on_the_line):
                self.calls.clear()
            self._break()
            return
        self._num_extra_braces = 0
        self._tail.clear()
        self._read = self._read_between

    def _read_between(self, text: str, position: int) -> int:
        character = text[position]
        is_inside = character == "{" and self._num_extra_braces > 0 and not self._tail
        is_inside = is_inside or (self._may_lack_opening and character == "}")
        if is_inside or (self._lacks_brace and character in "{},;"):
            self.calls.clear()
            return self._break(position)
        if character == "{":
            self._is_apart = bool(self._tail)
            self._is_on_the_line = "\n" not in self._tail
            return self._begin_call(position)
        if character == "}" and self._num_extra_braces < MAX_EXTRA_BRACES:
            self._num_extra_braces += 1
            return position + 1
        if character == "]" and self._is_list:
            self._tail.clear()
            self._is_list = False
            return position + 1
        if character not in WHITESPACE and character not in ",;":
            return self._end(position)
        self._tail.append(character)
        return position + 1
