"""Reads free text with calls in it: what the parsers of all formats have in common.

    text ──marker──▶ what may open a call ──▶ reader of calls ──done──▶ text
     ▲                       │ is none
     └───────────────────────┘

What opens a call is the format's, and its subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from inference.text.parts import Part
from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.part_list import PartList


class CallParser(ABC):
    """A ``ToolCallParser``. ``_read`` is the state: it takes the text and a position, and returns
    where it stopped."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = markers
        self._parts = PartList()
        self._text = FreeText(markers)
        self._follows_call = False
        """Whether ``_text`` began where a call ended."""
        self._lead: list[str] = []
        """Read before a call that may follow: text again where none does."""
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

    @abstractmethod
    def _read_text(self, text: str, start: int) -> int:
        """Outside calls: feeds ``_text`` and says what its markers mean."""

    def _begin_calls(self, calls: CallReader) -> None:
        self._calls, self._read = calls, self._read_calls

    def _read_calls(self, text: str, start: int) -> int:
        assert self._calls is not None
        position = self._calls.feed(text, start)
        if self._calls.is_done:
            self._resume_text(follows_call=self._calls.num_calls > 0)
        return position

    def _resume_text(self, *, follows_call: bool) -> None:
        self._text = FreeText(self._markers, follows_call=follows_call, has_text=not follows_call)
        self._follows_call = follows_call
        self._calls = None
        self._lead.clear()
        self._read = self._read_text
