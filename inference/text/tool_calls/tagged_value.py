"""The value between two tags, as a member of the arguments object.

A text argument is told as it comes; any other when it is whole, as its schema has it. In some
formats one newline at either end belongs to the format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inference.text.tool_calls.argument_values import as_json
from inference.text.tool_calls.argument_values import is_text as is_schema_of_text
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
        is_text: bool | None = None,
    ) -> None:
        """``member`` is what stands before the value: comma, key and colon. ``has_own_lines``: one
        newline at either end is not part of it. ``is_text``: whether the call says that it is text,
        or that it is JSON; ``None``: it says nothing, so the schema does."""
        self._parts = parts
        self._member = member
        self._schema = schema
        self._root = root
        self._is_json = is_text is False
        self._is_text = is_schema_of_text(schema, root) if is_text is None else is_text
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
            value = self._value("".join(self._whole))
            self._parts.add_arguments(self._member + value)

    def _value(self, text: str) -> str:
        if self._is_json:
            try:
                return compact_json(json.loads(text, strict=False))
            except (ValueError, RecursionError):
                pass
        return as_json(text, self._schema, self._root)

    def close(self) -> None:
        """The answer has ended inside the value."""
        if self._is_text:
            self._parts.add_arguments('"')

    def _tell(self, text: str) -> None:
        if self._is_text:
            self._parts.add_arguments(compact_json(text)[1:-1])
        else:
            self._whole.append(text)
