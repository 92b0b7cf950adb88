"""Calls written as JSON in a row, as three formats have them: objects, or lists of objects.

    {…}      {…}; {…}      {…}\\n{…}      [{…}, {…}]

Up to three closing braces too many after an object are left out, as models write them. Whitespace
around the calls is the format's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools, ReadCall
from inference.text.tool_calls.call_repairs import (
    ARGUMENTS_KEYS,
    CALL_KEYS,
    NO_SYNONYMS,
    named,
    parse_call,
    starts_no_call,
)
from inference.text.tool_calls.json_text import (
    WHITESPACE,
    JsonCopy,
    ReadState,
    json_tokens,
    read_json,
)


class JsonCall:
    """One call written as a JSON object, ``{"name": …, "arguments": {…}}``.

        object whole            ─▶ parsed, as ``call_repairs`` understands it, or BROKEN
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
        self.has_streamed = False
        self.lacks_brace = False
        """Whether the object ended without its own closing brace."""
        self.may_lack_opening = False
        """Whether one brace more behind the object may be the end of an object inside of it, whose
        beginning is missing."""
        self._tools = tools
        self._is_marked = is_marked
        self._stream = stream
        self._synonyms = synonyms
        self._has_two_openings = False
        self._name = ""
        """The tool's name, behind the key of arguments that are to be streamed."""
        self._object = JsonCopy(stops_behind_keys=not is_marked or stream is not None)
        self._arguments = JsonCopy()
        self._read: Callable[[str, int], int] = self._read_opening

    @property
    def has_begun(self) -> bool:
        return self._is_marked or '"' in self._object.text

    @property
    def is_no_call(self) -> bool:
        return starts_no_call(self._object.text, self._synonyms)

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``, at first a brace; returns where it stopped: at the end,
        after the object, or at the first character that cannot belong to it."""
        position = start
        while position < len(text) and self.state is ReadState.RUNNING:
            position = self._read(text, position)
        return position

    def close(self) -> None:
        """The answer has ended inside the object."""
        self._end(0, lacks_brace=True)

    def _read_opening(self, text: str, position: int) -> int:
        self._read = self._read_second_opening
        return self._object.feed(text[: position + 1], position)

    def _read_second_opening(self, text: str, position: int) -> int:
        """Some templates show calls in doubled braces, and models follow them."""
        self._read = self._read_object
        self._has_two_openings = text[position] == "{"
        return position + 1 if self._has_two_openings else position

    def _read_object(self, text: str, position: int) -> int:
        position = self._object.feed(text, position)
        if self._object.is_behind_key:
            return self._take_key(position)
        if self._object.state is ReadState.RUNNING:
            return position
        return self._end(position, lacks_brace=self._object.state is ReadState.BROKEN)

    def _take_key(self, position: int) -> int:
        self._name = ""
        try:
            *before, written, _ = json_tokens(self._object.text)
            key = read_json(written)
            if not (self._is_marked or self._synonyms.get(key, key) in CALL_KEYS):
                return self._break(position)
            if self._stream is not None and key in ARGUMENTS_KEYS and not self.has_streamed:
                given = read_json("".join([*before[:-1], "}"]) if before[1:] else "{}")
                self._name = named(given, self._synonyms)
        except ValueError:
            return self._break(position)
        self._read = self._read_value_start if self._name else self._read_object
        return position

    def _read_value_start(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            return position + 1
        self._read = self._read_object
        if text[position] == "{" and self._stream is not None:
            self.has_streamed = True
            self._stream.start_call(self._name)
            self._read = self._read_streamed
        return position

    def _read_streamed(self, text: str, position: int) -> int:
        assert self._stream is not None
        position = self._arguments.feed(text, position)
        self._stream.add_arguments(self._arguments.take())
        if self._arguments.state is ReadState.BROKEN:
            return self._break(position)
        if self._arguments.state is ReadState.COMPLETE:
            self._object.end_value()
            self._read = self._read_object
        return position

    def _end(self, position: int, *, lacks_brace: bool) -> int:
        """``lacks_brace``: what comes cannot belong to the object."""
        if not self.has_streamed:
            parsed = parse_call(
                self._object.text,
                self._tools,
                is_marked=self._is_marked,
                synonyms=self._synonyms,
                lacks_brace=lacks_brace,
            )
            if parsed is None:
                return self._break(position)
            self.result, has_inner = parsed
            self.may_lack_opening = not (has_inner or self._has_two_openings)
            self.lacks_brace = lacks_brace
        self.state = ReadState.COMPLETE
        return position

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
        self._new_call = partial(
            JsonCall, tools, is_marked=is_marked, stream=stream, synonyms=synonyms
        )
        self._is_list = False
        self._num_extra_braces = 0
        self._last: JsonCall | None = None
        """The last whole call, unless it was streamed."""
        self._is_apart = True
        """Whether anything stands between the call that is read and the one before it. Otherwise it
        is not known where one ends and the other begins."""
        self._is_on_the_line = False
        """Whether it begins on the line on which that one ends, so that it may be a part of it."""
        self._call: JsonCall | None = None
        self._read = self._read_start

    def close(self) -> None:
        if self._call is not None:
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
        self._call = self._new_call()
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
            self._last = call
        elif not call.has_streamed:
            if not self._is_apart or (call.is_no_call and self._is_on_the_line):
                self.calls.clear()
            self._break()
            return
        self._num_extra_braces = 0
        self._tail.clear()
        self._read = self._read_between

    def _read_between(self, text: str, position: int) -> int:
        character, last = text[position], self._last
        is_inside = character == "{" and self._num_extra_braces > 0 and not self._tail
        if last is not None:
            is_inside = is_inside or (last.may_lack_opening and character == "}")
            is_inside = is_inside or (last.lacks_brace and character in "{},;")
        if is_inside:
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
