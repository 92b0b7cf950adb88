"""OpenAI's model list, with helexa's own fields. An alias is an entry of its own, as in the
original system: clients offer the listed names. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from inference.wire.model_card import ModelCard, own_fields


def model_object(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created_unix_s,
        "owned_by": "helexa",
        "max_model_len": card.context_tokens,
        "max_input_tokens": None if card.limit is None else card.limit.input,
        "max_output_tokens": None if card.limit is None else card.limit.output,
        **own_fields(card, name),
        "capabilities": card.named_capabilities,
    }


def model_body(card: ModelCard) -> bytes:
    return orjson.dumps(model_object(card, card.id))


def model_list_body(cards: Sequence[ModelCard]) -> bytes:
    data = [model_object(card, name) for card in cards for name in (card.id, *card.aliases)]
    return orjson.dumps({"object": "list", "data": data})
