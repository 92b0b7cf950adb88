"""Whether a JSON schema is as narrow as OpenAI's strict mode asks for. Pure."""

from __future__ import annotations

from typing import Any


def is_strict(schema: dict[str, Any]) -> bool:
    """Every object in it, at any depth, allows no further properties and requires all it names."""
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            if not _is_closed(node):
                return False
            pending += node.values()
    return schema.get("type") == "object"


def _is_closed(node: dict[str, Any]) -> bool:
    """Also true for what is not an object's schema."""
    properties = node.get("properties")
    if node.get("type") != "object" and not isinstance(properties, dict):
        return True
    named = set(properties) if isinstance(properties, dict) else set()
    required = node.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
        return False
    return node.get("additionalProperties") is False and named <= set(required)
