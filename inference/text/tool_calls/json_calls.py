"""Calls written as JSON in a row, as three formats have them: objects, or lists of objects.

    {…}      {…}; {…}      {…}\\n{…}      [{…}, {…}]

Up to three closing braces too many after an object are left out, as models write them. Whitespace
around the calls is the format's.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_call import NO_SYNONYMS, JsonCall
from inference.text.tool_calls.json_scanner import WHITESPACE, ReadState
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList

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
