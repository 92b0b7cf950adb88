"""What reads the calls behind an opening, whatever their form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from inference.text.tool_calls.part_list import PartList


class CallReader(ABC):
    """Adds to ``parts``, its caller's list. What could not be read is text again, with what its
    caller had read before it unless a call had started."""

    _read: Callable[[str, int], int]
    """The state: takes the text and a position, returns where it stopped."""

    def __init__(self, parts: PartList) -> None:
        self.is_done = False
        self.num_calls = 0
        """How many calls were read to their end."""
        self._parts = parts

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, or at what follows
        the calls."""
        position = start
        while position < len(text) and not self.is_done:
            position = self._read(text, position)
        return position

    @abstractmethod
    def close(self) -> None:
        """The answer has ended."""
