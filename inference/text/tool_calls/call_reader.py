"""What reads the calls behind an opening, whatever their form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple


class ReadCall(NamedTuple):
    """A call that is whole."""

    name: str
    arguments: str
    """A JSON object."""


class CallReader(ABC):
    """Gathers the calls of one block. Its parser keeps the block's text, and decides whether they
    are calls once it knows what follows them."""

    _read: Callable[[str, int], int]
    """The state: takes the text and a position, returns where it stopped."""

    def __init__(self) -> None:
        self.is_done = False
        self.calls: list[ReadCall] = []
        self.has_begun = False
        """Whether a call had begun. Where it breaks, what follows may be its remains."""
        self.is_broken = False
        """Whether a call had begun that is not whole. Those before it are in ``calls``."""
        self.is_closed = False
        """Whether the block's closing marker was read, so that anything may follow."""
        self.has_streamed = False
        """Whether parts of a call were sent before the block ended."""
        self._tail: list[str] = []

    @property
    def tail(self) -> str:
        """The text that was read behind the last whole call."""
        return "".join(self._tail)

    def feed(self, text: str, start: int) -> int:
        """Reads ``text`` from ``start``; returns where it stopped: at the end, or at what follows
        the calls."""
        position = start
        while position < len(text) and not self.is_done:
            position = self._read(text, position)
        return position

    @abstractmethod
    def close(self) -> None:
        """The answer has ended. A call that is not whole is none."""

    def _end(self, position: int = 0) -> int:
        self.is_done = True
        return position

    def _break(self, position: int = 0) -> int:
        self.is_broken = self.has_begun
        return self._end(position)
