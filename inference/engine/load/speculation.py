"""Which drafts a loaded model gets, and in words why none."""

from __future__ import annotations

from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    LookupSpeculator,
    Speculator,
)
from inference.models.cache_layout import cache_layout
from inference.models.config import ModelConfig
from inference.protocol.load import LoadSpec


def choose_speculator(spec: LoadSpec, config: ModelConfig) -> tuple[Speculator | None, str]:
    """And what the load report says of it; empty where none was asked for."""
    if spec.speculation == "off":
        return None, ""
    if cache_layout(config).has_states:
        return None, "none: the state of this model's recurrent layers cannot be taken back"
    num_tokens = spec.max_draft_tokens or DEFAULT_DRAFT_TOKENS
    num_tokens = min(num_tokens, MOST_DRAFT_TOKENS)
    return LookupSpeculator(num_tokens), f"prompt lookup, up to {num_tokens} tokens a step"
