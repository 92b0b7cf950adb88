"""What a model keeps for a sequence: which layers have keys and values in blocks, which have a
state in a slot, and what a slot takes. Imports no torch: memory is planned with it.

    layer   0        1        2        3          4 ...
            delta    delta    delta    attention  delta
            state    state    state    blocks     state
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.models.config import ATTENTION_KINDS, STATE_KINDS, ModelConfig
from inference.models.layers.configs import StateShape, state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    attention_layers: tuple[int, ...]
    """Whose keys and values lie in blocks."""
    state_layers: tuple[int, ...] = ()
    """Who keep a state in a slot."""
    state: StateShape | None = None
    """The shape of each of those states."""
    module_state_bytes: int = 0
    """What a slot takes where one of transformers' own modules keeps the states."""

    @property
    def has_states(self) -> bool:
        return bool(self.state_layers)

    @property
    def state_bytes_per_slot(self) -> int:
        """What the states of all layers take; 0 without recurrent ones."""
        if self.state is None:
            return self.module_state_bytes
        return len(self.state_layers) * state_bytes(self.state)


def cache_layout(config: ModelConfig) -> CacheLayout:
    kept = config.module_cache
    if kept is not None:
        return CacheLayout(
            attention_layers=tuple(range(len(kept.kv_shapes))),
            state_layers=kept.state_layers,
            module_state_bytes=kept.state_bytes,
        )
    kinds = list(enumerate(config.mixer_kinds))
    return CacheLayout(
        attention_layers=tuple(index for index, kind in kinds if kind in ATTENTION_KINDS),
        state_layers=tuple(index for index, kind in kinds if kind in STATE_KINDS),
        state=config.state,
    )
