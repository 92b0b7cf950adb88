"""Free text with calls behind markers, as in most formats.

    text ──marker──▶ first character ──▶ reader of calls ──▶ closing marker, or text
                     selects one

Whitespace around the calls is left out, and so are the closing markers behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from inference.text.tool_calls.call_parser import CallParser
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.part_list import PartList

BeginCalls = Callable[[str, str, PartList | None], CallReader]
"""Given the marker, the first character behind it, and where to stream arguments to, if at all."""


class MarkedCallParser(CallParser):
    def __init__(
        self,
        openings: Sequence[str],
        begin: BeginCalls,
        *,
        closings: Sequence[str] = (),
        closed: Collection[str] | None = None,
        inner: Collection[str] = (),
    ) -> None:
        """``closed``: the openings behind whose calls a closing marker, another opening or the end
        of the answer must come; all of them where there are closing markers. ``inner``: the
        closing markers of one call in a section."""
        super().__init__([*openings, *closings])
        self._begin = begin
        self._closings = closings
        self._inner_closings = inner
        self._closed = openings if closed is None and closings else closed or ()

    def _found(self, position: int) -> int:
        self._parts.add_text(self._text.take())
        marker = self._text.found
        assert marker is not None
        if marker in self._closings:
            self._close()
        else:
            self._needs_closing = self._needs_closing or marker in self._closed
            self._lead = [self._text.space, marker]
            self._read = self._read_first
        return position

    def _close(self) -> None:
        """A closing marker is text where it closes nothing."""
        closes = self._follows_call and not self._text.has_text
        if not closes:
            self._text.reject()
            self._parts.add_text(self._text.take())
        self._resume_text(follows_call=closes)

    def _read_first(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            self._lead.append(text[position])
            return position + 1
        calls = self._begin(self._lead[1], text[position], self._stream)
        self._begin_calls(calls, "".join(self._lead))
        return position
