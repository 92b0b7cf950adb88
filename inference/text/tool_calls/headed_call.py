"""One call that names its tool in a head, with its arguments behind it.

    opening? ─▶ head ─▶ name    arguments, from their first brace on ─▶ the end, or what follows

What the arguments look like is a format's, and so is what may stand behind them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from inference.text.tool_calls.argument_values import fitted_json
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools, ReadCall
from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES
from inference.text.tool_calls.json_text import WHITESPACE, JsonCopy, ReadState, repaired

MAX_HEAD_LENGTH = 300
"""Most characters of name, id and markers together; a longer head is text."""
NOT_IN_HEADS = "{}\r\n"


class ArgumentsReader(Protocol):
    """Finds the end of the arguments."""

    state: ReadState

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        ...


class HeadedCall(CallReader):
    def __init__(
        self,
        *,
        name_of: Callable[[str], str | None],
        tools: KnownTools,
        opening: str | None = None,
        not_in_head: str = NOT_IN_HEADS,
    ) -> None:
        """``name_of`` returns ``None`` for a head that names no tool. ``opening`` is a marker that
        must come before the head."""
        super().__init__()
        self._tools = tools
        self._name = ""
        self._head = ""
        self._name_of = name_of
        self._not_in_head = not_in_head
        self._arguments: ArgumentsReader
        self._expected = Expected((opening,)) if opening else None
        self._read = self._read_head if opening is None else self._read_opening

    @abstractmethod
    def _begin_arguments(self) -> ArgumentsReader:
        """The name has been read."""

    @abstractmethod
    def _end_arguments(self, position: int) -> int:
        """The arguments are whole. Returns where it stopped."""

    def close(self) -> None:
        self._end()

    def _arguments_grew(self) -> None:
        """A piece of the arguments was read."""

    def _add_call(self, written: str) -> None:
        """Raises ``ValueError`` for arguments that are not whole JSON."""
        fitted = fitted_json(written, self._tools.schema(self._name))
        self.calls.append(ReadCall(self._name, fitted))

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
            self._arguments = self._begin_arguments()
            self._read = self._read_arguments
            return position
        if character in self._not_in_head or len(self._head) == MAX_HEAD_LENGTH:
            return self._end(position)
        self._head += character
        return position + 1

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._arguments.feed(text, position)
        self._arguments_grew()
        if self._arguments.state is ReadState.BROKEN:
            return self._break(position)
        if self._arguments.state is ReadState.COMPLETE:
            return self._end_arguments(position)
        return position


def plain_name(name: str) -> str | None:
    """``None`` for what no tool is called."""
    is_name = name and not any(character in name for character in f"{WHITESPACE}[]<>\"'")
    return name if is_name else None


class NamedCall(HeadedCall):
    """A call whose arguments are a JSON object. Up to three closing braces too many are left out.

        f[ARGS]{"a": 1}      f[CALL_ID]abc123def[ARGS]{}      f{"a": 1}        Mistral
        functions.f:0<|tool_call_argument_begin|>{"a": 1}                      Kimi

    ``stream``: where the arguments go as they are generated.
    """

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
        """``tail``: characters behind the arguments that are left out; the rest as in
        ``HeadedCall``."""
        super().__init__(name_of=name_of, tools=tools, opening=opening, not_in_head=not_in_head)
        self._stream = stream
        self._tail_characters = tail
        self._num_tail_characters = 0
        self._copy = JsonCopy()

    def _begin_arguments(self) -> JsonCopy:
        if self._stream is not None:
            self.has_streamed = True
            self._stream.start_call(self._name)
        return self._copy

    def _arguments_grew(self) -> None:
        if self._stream is not None:
            self._stream.add_arguments(self._copy.take())

    def _end_arguments(self, position: int) -> int:
        self._read = self._read_after
        if self._stream is not None:
            return position
        try:
            written, has_trailing_comma = repaired(self._copy.text)
            self._add_call(written)
        except ValueError:
            return self._break(position)
        if has_trailing_comma and not self._tools.may_be_all(*self.calls[-1]):
            self.calls.pop()
            return self._break(position)
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Closing braces too many, and what else the format has there."""
        most = len(self._tail_characters) * MAX_EXTRA_BRACES
        if text[position] in self._tail_characters and self._num_tail_characters < most:
            self._num_tail_characters += 1
            return position + 1
        return self._end(position)
