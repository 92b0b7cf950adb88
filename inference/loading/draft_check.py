"""Whether one model's drafts can serve another, by their configs."""

from __future__ import annotations

from inference.models.cache.kv_format import cache_layout
from inference.models.config import ModelConfig
from inference.protocol.load_errors import BadSourceError


def takes_draft_model(answering: ModelConfig) -> bool:
    """A drafter reads the blocks of all earlier tokens; a sliding window gives up the oldest."""
    return answering.widest_window is None


def check_draft_config(config: ModelConfig, source: str) -> None:
    """``source``: of the draft model, for the message. Raises ``BadSourceError``."""
    if cache_layout(config).has_states:
        raise BadSourceError(
            f"the draft model {source} has recurrent layers, whose state cannot be taken back; "
            "choose one whose layers are all attention"
        )
