"""Mistral's newer call: the name, perhaps an id, then the arguments as a JSON object.

    f[ARGS]{"a": 1}      f[CALL_ID]abc123def[ARGS]{}      f{"a": 1}

Up to three closing braces too many are left out.
"""

from __future__ import annotations

from inference.text.tool_calls.arguments_stream import ArgumentsStream
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.part_list import PartList

ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"
MAX_HEAD_LENGTH = 300
"""Of name, id and markers together; what is longer is text."""


class NamedCall(CallReader):
    """``lead`` was read before and is text again when no call follows."""

    def __init__(self, parts: PartList, *, lead: str) -> None:
        super().__init__(parts)
        self._lead = lead
        self._head = ""
        self._num_extra_braces = 0
        self._arguments = ArgumentsStream(parts)
        self._read = self._read_head

    def close(self) -> None:
        """The answer has ended."""
        if self.num_calls == 0:
            self._refuse()
        elif self._arguments.is_running:
            self._arguments.close()
        self.is_done = True

    def _read_head(self, text: str, position: int) -> int:
        character = text[position]
        if character == "{" and (name := _name(self._head)):
            self.num_calls = 1
            self._parts.start_call(name)
            self._read = self._read_arguments
            return position
        if character in "{}\r\n" or len(self._head) == MAX_HEAD_LENGTH:
            return self._refuse(position)
        self._head += character
        return position + 1

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._arguments.feed(text, position)
        if not self._arguments.is_running:
            self._read = self._read_after
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Closing braces too many."""
        if text[position] == "}" and self._num_extra_braces < MAX_EXTRA_BRACES:
            self._num_extra_braces += 1
            return position + 1
        self.is_done = True
        return position

    def _refuse(self, position: int = 0) -> int:
        self._parts.add_text(self._lead + self._head)
        self.is_done = True
        return position


def _name(head: str) -> str | None:
    """``None`` when what stands before the arguments is no name."""
    before_arguments = head.rstrip(WHITESPACE).removesuffix(ARGUMENTS)
    name = before_arguments.partition(CALL_ID)[0].strip(WHITESPACE)
    is_name = name and not any(character in name for character in f"{WHITESPACE}[]<>\"'")
    return name if is_name else None
