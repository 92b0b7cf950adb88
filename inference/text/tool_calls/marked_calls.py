"""Free text with calls behind markers: what three formats have in common.

    text ──marker──▶ first character ──▶ reader of calls ──done──▶ text
                     tells which

Whitespace around the calls is left out, and so is the closing marker behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from inference.text.parts import Part
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.part_list import PartList


class CallReader(Protocol):
    """Reads what stands behind a marker. ``num_calls`` is 0 when no call was read to its end; what
    could not be read is text then, with the lead unless a call had started."""

    is_done: bool
    num_calls: int

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, or done."""
        ...

    def close(self) -> None:
        """The answer has ended."""
        ...


BeginCalls = Callable[[PartList, str, str, str], CallReader]
"""Given the parts to add to, the marker, the lead (the marker and the whitespace around it) and the
first character behind."""


class MarkedCallParser:
    """A ``ToolCallParser``."""

    def __init__(
        self, openings: Sequence[str], begin: BeginCalls, *, closing: str | None = None
    ) -> None:
        self._markers = [*openings, closing] if closing else list(openings)
        self._begin = begin
        self._closing = closing
        self._parts = PartList()
        self._text = FreeText(self._markers)
        self._follows_call = False
        self._lead: list[str] = []
        """The marker and the whitespace around it."""
        self._calls: CallReader | None = None
        self._read: Callable[[str, int], int] = self._read_text

    def feed(self, text: str) -> list[Part]:
        position = 0
        while position < len(text):
            position = self._read(text, position)
        return self._parts.take()

    def flush(self) -> list[Part]:
        if self._calls is not None:
            self._calls.close()
        else:
            self._parts.add_text("".join(self._lead) + self._text.flush())
        return self._parts.take()

    def _read_text(self, text: str, start: int) -> int:
        position = self._text.feed(text, start)
        self._parts.add_text(self._text.take())
        if self._text.found is None:
            return position
        if self._text.found == self._closing:
            self._close()
        else:
            self._lead = [self._text.space, self._text.found]
            self._read = self._read_first
        return position

    def _close(self) -> None:
        """A closing marker is text where it closes nothing."""
        if not self._follows_call or self._text.has_text:
            self._text.reject()
            self._parts.add_text(self._text.take())
            self._follows_call = False
        self._text = FreeText(self._markers, follows_call=self._follows_call)

    def _read_first(self, text: str, position: int) -> int:
        if text[position] in WHITESPACE:
            self._lead.append(text[position])
            return position + 1
        marker = self._lead[1]
        self._calls = self._begin(self._parts, marker, "".join(self._lead), text[position])
        self._lead.clear()
        self._read = self._read_calls
        return position

    def _read_calls(self, text: str, start: int) -> int:
        assert self._calls is not None
        position = self._calls.feed(text, start)
        if self._calls.is_done:
            self._follows_call = self._calls.num_calls > 0
            self._text = FreeText(self._markers, follows_call=self._follows_call)
            self._calls = None
            self._read = self._read_text
        return position
