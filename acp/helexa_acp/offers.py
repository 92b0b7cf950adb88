"""The models that endpoints list in ``GET /models``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WINDOW_KEYS = ("context_length", "max_model_len", "context_window", "max_input_tokens")
"""OpenRouter, vLLM and others."""


@dataclass(frozen=True, slots=True)
class Offer:
    """None: the endpoint does not report it."""

    model: str
    context_window: int | None = None
    takes_tools: bool | None = None


def read_offers(body: Any) -> tuple[Offer, ...]:
    """Returns the models in the endpoint's order, without those that only make vectors."""
    listed = body.get("data") if isinstance(body, dict) else None
    offers = [_offer(entry) for entry in (listed if isinstance(listed, list) else ())]
    return tuple(offer for offer in offers if offer is not None)


def _offer(entry: Any) -> Offer | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        return None
    limit = entry.get("limit")
    limit = limit if isinstance(limit, dict) else {}
    if limit.get("output") == 0:
        return None
    windows = [limit.get("context"), *(entry.get(key) for key in WINDOW_KEYS)]
    windows = [one for one in windows if isinstance(one, int) and one > 0 and one is not True]
    takes_tools = entry.get("tool_call")
    return Offer(
        entry["id"],
        windows[0] if windows else None,
        takes_tools if isinstance(takes_tools, bool) else None,
    )
