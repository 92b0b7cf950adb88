"""One call that names its tool in a head, with its arguments behind it.

    opening? ─▶ head ─▶ name    arguments, from their first brace on ─▶ what may be too many

    f[ARGS]{"a": 1}      f[CALL_ID]abc123def[ARGS]{}      f{"a": 1}        Mistral
    functions.f:0<|tool_call_argument_begin|>{"a": 1}                      Kimi
    call:f{city:<escape>Paris<escape>}                                     Gemma

What the arguments look like is a format's, and so is what may stand behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inference.text.tool_calls.argument_values import fitted_json
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, Expected, KnownTools, ReadCall
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES
from inference.text.tool_calls.json_text import WHITESPACE, JsonCopy, ReadState

MAX_HEAD_LENGTH = 300
"""Most characters of name, id and markers together; a longer head is text."""
NOT_IN_HEADS = "{}\r\n"


class Arguments(Protocol):
    """Finds the end of a call's arguments, and reads them."""

    state: ReadState

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        ...

    def take(self) -> str:
        """The part of the arguments that may be sent, where they are streamed."""
        ...

    def as_json(self) -> tuple[str, bool]:
        """The whole arguments, and whether one may be missing behind a comma. Raises
        ``ValueError`` for what cannot be read."""
        ...


class HeadedCall(CallReader):
    def __init__(
        self,
        *,
        name_of: Callable[[str], str | None],
        tools: KnownTools,
        arguments: Callable[[str], Arguments] = lambda _name: JsonCopy(),
        stream: PartList | None = None,
        opening: str | None = None,
        not_in_head: str = NOT_IN_HEADS,
        tail: str = "}",
    ) -> None:
        """``name_of`` returns ``None`` for a head that names no tool, ``arguments`` the reader of a
        tool's arguments. ``stream``: where arguments go as they are generated. ``opening`` is a
        marker that must come before the head. ``tail``: characters behind the arguments that are
        left out."""
        super().__init__()
        self._name_of = name_of
        self._tools = tools
        self._arguments_of = arguments
        self._stream = stream
        self._expected = Expected((opening,)) if opening else None
        self._not_in_head = not_in_head
        self._tail_characters = tail
        self._num_tail_characters = 0
        self._name = self._head = ""
        self._arguments: Arguments
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
            self._begin_arguments(name)
            return position
        if character in self._not_in_head or len(self._head) == MAX_HEAD_LENGTH:
            return self._end(position)
        self._head += character
        return position + 1

    def _begin_arguments(self, name: str) -> None:
        self._name = name
        self.has_begun = True
        self._arguments = self._arguments_of(name)
        self._read = self._read_arguments
        if self._stream is not None:
            self.has_streamed = True
            self._stream.start_call(name)

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._arguments.feed(text, position)
        if self._stream is not None:
            self._stream.add_arguments(self._arguments.take())
        if self._arguments.state is ReadState.BROKEN:
            return self._break(position)
        if self._arguments.state is ReadState.COMPLETE:
            self._read = self._read_after
            return position if self._stream is not None else self._add_call(position)
        return position

    def _add_call(self, position: int) -> int:
        try:
            written, has_trailing_comma = self._arguments.as_json()
            fitted = fitted_json(written, self._tools.schema(self._name))
        except ValueError:
            return self._break(position)
        if has_trailing_comma and not self._tools.may_be_all(self._name, fitted):
            return self._break(position)
        self.calls.append(ReadCall(self._name, fitted))
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Closing braces too many, and what else the format has there."""
        most = len(self._tail_characters) * MAX_EXTRA_BRACES
        if text[position] in self._tail_characters and self._num_tail_characters < most:
            self._num_tail_characters += 1
            return position + 1
        return self._end(position)


def plain_name(name: str) -> str | None:
    """``None`` for what no tool is called."""
    is_name = name and not any(character in name for character in f"{WHITESPACE}[]<>\"'")
    return name if is_name else None
