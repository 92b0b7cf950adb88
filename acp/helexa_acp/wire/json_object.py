"""A streamed JSON object of an endpoint: its keys as attributes.

The SDKs' own models of it are not used: openai's take a second to build for the first event.
"""

from __future__ import annotations

from typing import Any


class JsonObject:
    """A JSON object; ``None`` for a key that it does not have."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        value = self.raw.get(name)
        if isinstance(value, list):
            return [JsonObject(one) if isinstance(one, dict) else one for one in value]
        return JsonObject(value) if isinstance(value, dict) else value

    def without_nulls(self) -> dict[str, Any]:
        kept: dict[str, Any] = _without_nulls(self.raw)
        return kept


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
