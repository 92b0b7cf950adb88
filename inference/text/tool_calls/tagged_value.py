"""The value between two tags, as a member of the arguments object.

A text argument is told as it comes; any other when it is whole, as its schema has it. In some
formats one newline at either end belongs to the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.text.tool_calls.argument_values import as_json, is_text
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.json_scanner import compact_json
from inference.text.tool_calls.part_list import PartList

PARAMETER_END = "</parameter>"


class TaggedValue:
    """Adds to ``parts``, its caller's list."""

    def __init__(
        self,
        parts: PartList,
        *,
        member: str,
        schema: object,
        root: Mapping[str, Any],
        closing: str,
        has_own_lines: bool,
    ) -> None:
        """``member`` is what stands before the value: comma, key and colon. ``has_own_lines``: one
        newline at either end is not part of it."""
        self._parts = parts
        self._member = member
        self._schema = schema
        self._root = root
        self._is_text = is_text(schema, root)
        self._text = FreeText((closing,))
        self._whole: list[str] = []
        self._is_first = has_own_lines
        self._has_own_lines = has_own_lines
        if self._is_text:
            parts.add_arguments(f'{member}"')

    @property
    def is_at_end(self) -> bool:
        """Whether the closing tag was read last."""
        return self._text.found is not None

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, or after a closing tag."""
        skipped = 1 if self._is_first and text[start] == "\n" else 0
        self._is_first = False
        position = self._text.feed(text, start + skipped)
        self._tell(self._text.take())
        return position

    def go_on(self, read: str) -> None:
        """The closing tag, and what was ``read`` after it, are part of the value."""
        self._text.reject()
        self._text.feed(read, 0)
        self._tell(self._text.take())

    def finish(self) -> None:
        """The value is whole."""
        space = self._text.space
        self._tell(space.removesuffix("\n") if self._has_own_lines else space)
        if self._is_text:
            self._parts.add_arguments('"')
        else:
            value = as_json("".join(self._whole), self._schema, self._root)
            self._parts.add_arguments(self._member + value)

    def close(self) -> None:
        """The answer has ended inside the value."""
        if self._is_text:
            self._parts.add_arguments('"')

    def _tell(self, text: str) -> None:
        if self._is_text:
            self._parts.add_arguments(compact_json(text)[1:-1])
        else:
            self._whole.append(text)
