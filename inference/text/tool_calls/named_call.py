"""One call that names its tool in a head before its arguments, which are a JSON object.

    f[ARGS]{"a": 1}      f[CALL_ID]abc123def[ARGS]{}      f{"a": 1}        Mistral
    functions.f:0<|tool_call_argument_begin|>{"a": 1}                      Kimi

The head is the format's: ``name_of`` finds the name in it. Up to three closing braces too many are
left out.
"""

from __future__ import annotations

from collections.abc import Callable

from inference.text.tool_calls.argument_fit import fitted_json
from inference.text.tool_calls.call_reader import CallReader, ReadCall
from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES
from inference.text.tool_calls.json_scanner import (
    WHITESPACE,
    JsonScanner,
    ReadState,
)
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList

ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"
MAX_HEAD_LENGTH = 300
"""The longest that name, id and markers may be together; what is longer is text."""


NOT_IN_HEADS = "{}\r\n"


class NamedCall(CallReader):
    """``stream``: where the arguments go as they are generated."""

    def __init__(
        self,
        *,
        name_of: Callable[[str], str | None],
        tools: KnownTools,
        stream: PartList | None = None,
        not_in_head: str = NOT_IN_HEADS,
        opening: str | None = None,
        tail: str = "}",
    ) -> None:
        """``name_of`` returns ``None`` for a head that names no tool. ``opening`` is a marker that
        must come before the head. ``tail``: characters behind the arguments that are left out."""
        super().__init__()
        self._head = ""
        self._name = ""
        self._name_of = name_of
        self._tools = tools
        self._stream = stream
        self._not_in_head = not_in_head
        self._tail_characters = tail
        self._num_tail_characters = 0
        self._arguments = JsonScanner()
        self._written: list[str] = []
        self._expected = Expected((opening,)) if opening else None
        self._read = self._read_head if opening is None else self._read_opening

    def close(self) -> None:
        self._end()

    def _read_opening(self, text: str, position: int) -> int:
        assert self._expected is not None
        position = self._expected.feed(text, position)
        if self._expected.state is ReadState.BROKEN:
            return self._end(position)
        if self._expected.state is ReadState.COMPLETE:
            self._read = self._read_head
        return position

    def _read_head(self, text: str, position: int) -> int:
        character = text[position]
        if character == "{" and (name := self._name_of(self._head)):
            self._name = name
            self.has_begun = True
            if self._stream is not None:
                self.has_streamed = True
                self._stream.start_call(name)
            self._read = self._read_arguments
            return position
        if character in self._not_in_head or len(self._head) == MAX_HEAD_LENGTH:
            return self._end(position)
        self._head += character
        return position + 1

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._arguments.feed(text, position)
        if self._stream is not None:
            self._stream.add_arguments(self._arguments.take())
        else:
            self._written.append(self._arguments.take())
        if self._arguments.state is ReadState.BROKEN:
            return self._break(position)
        if self._arguments.state is ReadState.COMPLETE:
            return self._end_arguments(position)
        return position

    def _end_arguments(self, position: int) -> int:
        self._read = self._read_after
        if self._stream is None:
            try:
                written = fitted_json("".join(self._written), self._tools.schema(self._name))
            except ValueError:
                return self._break(position)
            if self._arguments.has_trailing_comma and not self._tools.may_be_all(
                self._name, written
            ):
                return self._break(position)
            self.calls.append(ReadCall(self._name, written))
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Closing braces too many, and what else the format has there."""
        most = len(self._tail_characters) * MAX_EXTRA_BRACES
        if text[position] in self._tail_characters and self._num_tail_characters < most:
            self._num_tail_characters += 1
            return position + 1
        return self._end(position)


def mistral_name(head: str, tools: KnownTools) -> str | None:
    """``None`` when what stands before the arguments is no name. Without a marker behind it, only a
    tool's is one."""
    head = head.rstrip(WHITESPACE)
    name = head.removesuffix(ARGUMENTS).partition(CALL_ID)[0].strip(WHITESPACE)
    return plain_name(name) if head.endswith(ARGUMENTS) or name in tools else None


def plain_name(name: str) -> str | None:
    """``None`` for what no tool is called."""
    is_name = name and not any(character in name for character in f"{WHITESPACE}[]<>\"'")
    return name if is_name else None
