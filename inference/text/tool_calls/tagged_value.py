"""The value between two tags, as JSON.

In some formats one newline at either end belongs to the format. A value may contain its closing tag
as text. Behind a broken tag it is ambiguous whether that tag is text or the format's; such a value
``is_doubtful``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inference.text.tool_calls.argument_values import allowed_types, alternatives, as_json
from inference.text.tool_calls.argument_values import is_text as is_schema_of_text
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.json_scanner import compact_json, read_json

PARAMETER_END = "</parameter>"


class TaggedValue:
    def __init__(
        self,
        *,
        schema: object,
        root: Mapping[str, Any],
        closing: str,
        has_own_lines: bool,
        doubts: re.Pattern[str],
        is_text: bool | None = None,
    ) -> None:
        """``has_own_lines``: one newline at either end is not part of it. ``doubts``: tags inside
        of it that may be the format's. ``is_text``: whether the call marks it as text or as JSON;
        ``None``: unmarked, the schema decides."""
        self._schema = schema
        self._root = root
        self._closing = closing
        self._doubts = doubts
        self._is_json = is_text is False
        self._is_text = is_schema_of_text(schema, root) if is_text is None else is_text
        self._may_be_text = any(
            "string" in allowed_types(one) for one in alternatives(schema, root)
        )
        self._text = FreeText((closing,))
        self._whole: list[str] = []
        self._is_first = has_own_lines
        self._has_own_lines = has_own_lines
        self._begins_with_line = False

    @property
    def is_at_end(self) -> bool:
        """Whether the closing tag was read last."""
        return self._text.found is not None

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, or after a closing tag."""
        self._begins_with_line = self._begins_with_line or (self._is_first and text[start] == "\n")
        skipped = 1 if self._is_first and text[start] == "\n" else 0
        self._is_first = False
        position = self._text.feed(text, start + skipped)
        self._whole.append(self._text.take())
        return position

    def resume(self, read: str) -> None:
        """Treat the closing tag and the text ``read`` after it as part of the value."""
        self._text.reject()
        self._text.feed(read, 0)
        self._whole.append(self._text.take())

    @property
    def is_doubtful(self) -> bool:
        text = "".join(self._whole)
        is_on_one_line = self._has_own_lines and not self._begins_with_line
        if is_on_one_line and self._closing in text:
            return True
        if "<" in text and not self._may_be_text and self.finish().startswith('"'):
            return True
        return self._doubts.search(f"\n{text}\n") is not None

    def finish(self) -> str:
        """The value is whole."""
        space = self._text.space
        text = "".join(self._whole)
        text += space.removesuffix("\n") if self._has_own_lines else space
        if self._is_text:
            return compact_json(text)
        if self._is_json:
            try:
                return compact_json(read_json(text))
            except (ValueError, RecursionError):
                pass
        return as_json(text, self._schema, self._root)
