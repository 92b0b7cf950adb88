"""What a model keeps for a sequence: which layers have keys and values in blocks, which have a
state in a slot, and what a slot takes. Imports no torch: memory is planned with it.

    layer   0        1        2        3          4 ...
            delta    delta    delta    attention  delta
            state    state    state    blocks     state
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.models.config import ModelConfig
from inference.models.delta_config import DeltaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    attention_layers: tuple[int, ...]
    """Whose keys and values lie in blocks."""
    state_layers: tuple[int, ...] = ()
    """Who keep a state in a slot."""
    state: DeltaConfig | None = None
    """The shape of each of those states."""

    @property
    def has_states(self) -> bool:
        return bool(self.state_layers)

    @property
    def state_bytes_per_slot(self) -> int:
        """Of all layers; 0 without recurrent ones."""
        if self.state is None:
            return 0
        return len(self.state_layers) * self.state.state_bytes_per_layer


def cache_layout(config: ModelConfig) -> CacheLayout:
    kinds = list(enumerate(config.mixer_kinds))
    return CacheLayout(
        attention_layers=tuple(index for index, kind in kinds if kind != "delta"),
        state_layers=tuple(index for index, kind in kinds if kind == "delta"),
        state=config.delta,
    )
