"""The tools that a request offers, looked up while its calls are read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from inference.protocol.generation import ToolDefinition


class KnownTools:
    """Schemas are the client's: whatever in them is not of the expected shape counts as absent."""

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
        """Whether the tool knows all of these arguments and misses none that it requires."""
        required = self.schema(name).get("required")
        needed = required if isinstance(required, list) else []
        given = list(arguments)  # a schema's ``required`` may name anything
        return set(given) <= self.properties(name).keys() and all(
            argument in given for argument in needed
        )
