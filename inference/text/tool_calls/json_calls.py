"""Calls written as JSON in a row, as three formats have them: objects, or lists of objects.

    {…}      {…}; {…}      {…}\\n{…}      [{…}, {…}]

Up to three closing braces too many after an object are left out, as models write them. Whitespace
around the calls is the format's. What is no call comes out as text, with everything before it that
belongs to it.
"""

from __future__ import annotations

from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_call import JsonCall
from inference.text.tool_calls.json_scanner import WHITESPACE, ReadState
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList

MAX_EXTRA_BRACES = 3


class JsonCalls(CallReader):
    def __init__(
        self, tools: KnownTools, parts: PartList, *, lead: str, is_marked: bool = True
    ) -> None:
        """``lead`` was read before the first call (whitespace and marker) and is text again when
        no call follows."""
        super().__init__(parts)
        self._tools = tools
        self._is_marked = is_marked
        self._held = [lead]
        """As it came, since the last call that could be read."""
        self._is_list = False
        self._num_extra_braces = 0
        self._call: JsonCall | None = None
        self._read = self._read_start

    def close(self) -> None:
        """The answer has ended."""
        if self._call is not None:
            self._call.close()
            if self._call.has_started:
                self._end_call()
        self._end()

    def _read_start(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE or (character == "[" and not self._is_list):
            self._is_list = self._is_list or character == "["
            self._held.append(character)
            return position + 1
        return self._begin_call(position) if character == "{" else self._end(position)

    def _begin_call(self, position: int) -> int:
        self._call = JsonCall(self._tools, self._parts, is_marked=self._is_marked)
        self._read = self._read_call
        return position

    def _read_call(self, text: str, start: int) -> int:
        assert self._call is not None
        position = self._call.feed(text, start)
        if self._call.state is ReadState.COMPLETE:
            self._end_call()
        elif not self._call.has_started:
            self._held.append(text[start:position])
            if self._call.state is ReadState.BROKEN:
                self._end(position)
        return position

    def _end_call(self) -> None:
        self._call = None
        self.num_calls += 1
        self._num_extra_braces = 0
        self._held.clear()
        self._read = self._read_between

    def _read_between(self, text: str, position: int) -> int:
        character = text[position]
        if character == "{":
            return self._begin_call(position)
        if character == "}" and self._num_extra_braces < MAX_EXTRA_BRACES:
            self._num_extra_braces += 1
            return position + 1
        if character == "]" and self._is_list:
            self._held.clear()
            self._is_list = False
            return position + 1
        if character not in WHITESPACE and character not in ",;":
            return self._end(position)
        self._held.append(character)
        return position + 1

    def _end(self, position: int = 0) -> int:
        held = "".join(self._held)
        if self.num_calls == 0 or held.strip(WHITESPACE):
            self._parts.add_text(held)
        self._held.clear()
        self.is_done = True
        return position
