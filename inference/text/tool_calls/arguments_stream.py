"""The arguments object of a call that has started: each piece a part as soon as it is known.

Always completed. Broken in the middle, it is closed where it stands and what waited is text; cut
off by the end of the answer, a key without its value and an unfinished number are left out.
"""

from __future__ import annotations

from inference.text.tool_calls.json_scanner import JsonScanner, ReadState
from inference.text.tool_calls.part_list import PartList


class ArgumentsStream:
    """Adds to ``parts``, its caller's list."""

    def __init__(self, parts: PartList) -> None:
        self._scanner = JsonScanner()
        self._parts = parts

    @property
    def is_running(self) -> bool:
        return self._scanner.state is ReadState.RUNNING

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        position = self._scanner.feed(text, start)
        unread = ""
        if self._scanner.state is ReadState.BROKEN:
            unread = self._scanner.close()
        self._parts.add_arguments(self._scanner.take())
        self._parts.add_text(unread)
        return position

    def close(self) -> None:
        """The answer has ended."""
        self._scanner.close()
        self._parts.add_arguments(self._scanner.take())
