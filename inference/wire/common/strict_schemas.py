"""Whether a tool without ``strict`` is strict by default: OpenAI's rule for Responses,
where strict is the default and a schema that does not fit falls back to not being enforced. Pure.
"""

from __future__ import annotations

from typing import Any

ENFORCEABLE = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items"),
        *("enum", "const", "anyOf"),
        *("title", "description", "$schema"),
    }
)
"""Keywords that every grammar can follow. A schema with others is only enforced if its client sets
``strict``, and may then be refused."""


def is_strict(schema: dict[str, Any]) -> bool:
    """Whether it is an object's schema, all its keywords are ``ENFORCEABLE``, and every object in
    it, at any depth, allows no further properties and requires all it names."""
    return schema.get("type") == "object" and _fits(schema)


def _fits(node: Any) -> bool:
    """Whether a schema can be enforced. Also false for a value that is no schema; other checks
    refuse it."""
    if not isinstance(node, dict) or not node.keys() <= ENFORCEABLE:
        return False
    properties = node.get("properties", {})
    choices = node.get("anyOf", [])
    if not isinstance(properties, dict) or not isinstance(choices, list):
        return False
    is_object = node.get("type") == "object" or "properties" in node
    if is_object and not _is_closed(node, properties):
        return False
    inner = [*properties.values(), *choices, *([node["items"]] if "items" in node else [])]
    return all(map(_fits, inner))


def _is_closed(node: dict[str, Any], properties: dict[str, Any]) -> bool:
    required = node.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
        return False
    return node.get("additionalProperties") is False and properties.keys() <= set(required)
