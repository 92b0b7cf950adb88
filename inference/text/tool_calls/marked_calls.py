"""Free text with calls behind markers: what most formats have in common.

    text ──marker──▶ first character ──▶ reader of calls ──done──▶ text
                     tells which

Whitespace around the calls is left out, and so are the closing markers behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.text.tool_calls.call_parser import CallParser
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.part_list import PartList

BeginCalls = Callable[[PartList, str, str, str], CallReader]
"""Given the parts to add to, the marker, the lead (the marker and the whitespace around it) and the
first character behind."""


class MarkedCallParser(CallParser):
    def __init__(
        self, openings: Sequence[str], begin: BeginCalls, *, closings: Sequence[str] = ()
    ) -> None:
        super().__init__([*openings, *closings])
        self._begin = begin
        self._closings = closings

    def _read_text(self, text: str, start: int) -> int:
        position = self._text.feed(text, start)
        self._parts.add_text(self._text.take())
        if self._text.found is None:
            return position
        if self._text.found in self._closings:
            self._close()
        else:
            self._lead = [self._text.space, self._text.found]
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
        marker = self._lead[1]
        lead = "".join(self._lead)
        self._begin_calls(self._begin(self._parts, marker, lead, text[position]))
        return position
