"""The base of all readers of calls behind an opening, and the tools that a reader may know."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from inference.protocol.generation import ToolDefinition


class ReadCall(NamedTuple):
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


class KnownTools:
    """The tools that a request offers. Schemas are the client's: whatever in them is not of the
    expected shape counts as absent."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._schemas = {tool.name: tool.parameters or {} for tool in tools}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of the tool's arguments; empty for a tool that the request does not
        offer."""
        return self._schemas.get(name, {})

    def properties(self, name: str) -> Mapping[str, Any]:
        properties = self.schema(name).get("properties")
        return properties if isinstance(properties, dict) else {}

    def may_be_all(self, name: str, arguments: str) -> bool:
        """Whether these arguments, a JSON object that ends in a comma, can be complete: they are
        all that the tool has, or its arguments are unknown."""
        given = json.loads(arguments)
        is_flat = not any(isinstance(value, dict | list) for value in given.values())
        return name not in self or (is_flat and self.properties(name).keys() <= given.keys())

    def named_by(self, arguments: Collection[str]) -> str | None:
        """The only tool that takes these arguments."""
        fitting = [name for name in self._schemas if self.takes(name, arguments)]
        return fitting[0] if len(fitting) == 1 else None

    def takes(self, name: str, arguments: Collection[str]) -> bool:
        required = self.schema(name).get("required")
        needed = required if isinstance(required, list) else []
        given = list(arguments)  # a schema's ``required`` may name anything
        return set(given) <= self.properties(name).keys() and all(
            argument in given for argument in needed
        )
