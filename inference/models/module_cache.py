"""The cache of a module of the transformers backend: entries of each token, which go into blocks,
and of each sequence, which go into a state slot. Detected by
``inference.models.transformers_backend.detection``.

Imports no torch: memory is planned with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inference.models.layer_configs import STATE_ELEMENT_BYTES

ATTENTION, INDEXER = "attention", "indexer"
"""Parts of a layer that keep something of each token."""
OWN = "own"
"""The kind of states that a module keeps apart from the layers of transformers' cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """A part of a layer's entry of each token: a key and a value, or a key alone."""

    layer: int
    part: str
    key_shape: tuple[int, int]
    """Heads and their width."""
    value_shape: tuple[int, int]
    """(0, 0) of a key alone."""

    @property
    def has_values(self) -> bool:
        return self.value_shape != (0, 0)

    @property
    def is_even(self) -> bool:
        return self.key_shape == self.value_shape

    @property
    def kv_shape(self) -> tuple[int, int]:
        """Heads and width of the pair that blocks hold. Keys and values of different shapes lie one
        after the other in it, as one head."""
        if self.is_even:
            return self.key_shape
        return 1, -(-(math.prod(self.key_shape) + math.prod(self.value_shape)) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    layer: int
    """0 for one that is the module's own."""
    kind: str
    """The layer's name for it."""
    index: int
    """Among several of the layer, or of the module's own."""
    shape: tuple[int, ...]
    """The shape of one sequence's state."""
    dtype: str | None
    """The dtype that the module keeps it in, by torch's name; ``None``: the activations'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCache:
    tokens: tuple[TokenEntry, ...]
    states: tuple[StateEntry, ...]

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of each entry. Blocks also name the prefixes of a module that keeps nothing of
        a token: then they hold one number of each."""
        return tuple(entry.kv_shape for entry in self.tokens) or ((1, 1),)

    @property
    def state_layers(self) -> tuple[int, ...]:
        return tuple(sorted({entry.layer for entry in self.states}))

    @property
    def state_bytes(self) -> int:
        return STATE_ELEMENT_BYTES * sum(math.prod(entry.shape) for entry in self.states)
