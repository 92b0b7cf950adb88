"""OpenAI's model list, with what helexa knows beyond it. Pure.

``limit`` is the limit that is enforced; it is known once a replica is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """``status`` is the best of its replicas', or ``unloaded``. ``locations`` are the neurons that
    hold it ready, ``feasible_on`` those that could serve it."""

    id: str
    created_unix_s: int
    description: str
    aliases: tuple[str, ...]
    status: str
    locations: tuple[str, ...]
    feasible_on: tuple[str, ...]
    context_tokens: int | None


def model_object(card: ModelCard) -> dict[str, Any]:
    limit = None
    if card.context_tokens is not None:
        # Prompt and output share the context; either may take all of it but one token.
        longest = card.context_tokens - 1
        limit = {"context": card.context_tokens, "input": longest, "output": longest}
    return {
        "id": card.id,
        "object": "model",
        "created": card.created_unix_s,
        "owned_by": "helexa",
        "description": card.description,
        "aliases": card.aliases,
        "limit": limit,
        "capabilities": ["chat", "completions", "logprobs"],
        "tool_call": False,
        "reasoning": False,
        "loaded": bool(card.locations),
        "locations": card.locations,
        "feasible_on": card.feasible_on,
        "status": card.status,
    }


def model_body(card: ModelCard) -> bytes:
    return orjson.dumps(model_object(card))


def model_list_body(cards: Sequence[ModelCard]) -> bytes:
    return orjson.dumps({"object": "list", "data": [model_object(card) for card in cards]})
