"""The arguments object of a call that a grammar holds to JSON: each piece a part as soon as it is
known. Cut off by the end of the answer, it stays as it is: no client takes half an object for a
call."""

from __future__ import annotations

from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.json_scanner import JsonScanner, ReadState


class ArgumentsStream:
    """Adds to ``parts``, its caller's list."""

    def __init__(self, parts: PartList) -> None:
        self._scanner = JsonScanner()
        self._parts = parts

    @property
    def state(self) -> ReadState:
        return self._scanner.state

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        position = self._scanner.feed(text, start)
        self._parts.add_arguments(self._scanner.take())
        return position
