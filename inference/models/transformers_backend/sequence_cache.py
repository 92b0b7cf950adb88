"""transformers' cache of one sequence, whose layers lie in our blocks and state slots.

    module ─▶ SequenceCache ─▶ PagedTokens ─▶ blocks      keys and values, indexer's keys
                          └──▶ SlotStates ──▶ slots       states: read from one, written to another

The cache and its layers stay of transformers' own classes, whichever the module has made, so that
whatever asks what kind they are gets the same answer; only where they keep things is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicIndexedLayer

from inference.models.cache.module_cache import ATTENTION, INDEXER, StateEntry
from inference.models.step_input import EMPTY_STATE
from inference.models.transformers_backend.compressed_tokens import CompressedTokens, keeps_entries
from inference.models.transformers_backend.learning import (
    MIXED_LAYERS,
    STATE_LAYERS,
    TOKEN_LAYERS,
    Layer,
    Learnt,
)
from inference.models.transformers_backend.storage import (
    ModuleStorage,
    SequenceRows,
    TokenTensors,
    read_state,
)


def sequence_cache(
    learnt: Learnt, storage: ModuleStorage, rows: SequenceRows, dtype: torch.dtype
) -> SequenceCache:
    """Make the cache for the rows of one sequence in one step. ``dtype``: what the module computes
    in."""
    kind: Any = learnt.cache_kind
    made: SequenceCache = _cache_kept_here(kind)(learnt.layers, storage, rows, dtype)
    return made


class SequenceCache(Cache):  # type: ignore[misc]
    """What a module reads and writes for the rows of one sequence in one step. ``save_states`` ends
    it."""

    own_states: list[torch.Tensor] | None
    """The module's own states, which the caller replaces after each forward by the new ones.
    ``None`` before a sequence's first token."""

    def __init__(
        self,
        layers: Sequence[Layer],
        storage: ModuleStorage,
        rows: SequenceRows,
        dtype: torch.dtype,
    ) -> None:
        made = []
        for index, layer in enumerate(layers):
            found = _layer_kept_here(layer.kind)(**layer.arguments)  # type: ignore[arg-type]
            if isinstance(found, PagedTokens):
                found.attach_blocks(index, storage, rows)
            if layer.num_positions and rows.start:
                positions = torch.arange(rows.start, device=rows.slots.device)
                found.indexer_position_ids = positions.expand(layer.num_positions, 1, -1)
            if isinstance(found, SlotStates | CompressedTokens):
                found.attach_slots(storage.states_of(index), rows, dtype)
            made.append(found)
        Cache.__init__(self, layers=made)
        self._rows, self._own_slots = rows, storage.own_states()
        self.own_states = None
        if rows.state_read != EMPTY_STATE:
            self.own_states = [
                read_state(entry, slots, rows, dtype) for entry, slots in self._own_slots.items()
            ]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if not any(isinstance(layer, PagedTokens) for layer in self.layers):
            return self._rows.start
        return int(super().get_seq_length(layer_idx))

    def save_states(self) -> None:
        for layer in self.layers:
            if isinstance(layer, SlotStates | CompressedTokens):
                layer.save_states()
        for slots, state in zip(self._own_slots.values(), self.own_states or (), strict=True):
            slots[self._rows.state_write].copy_(state[0])


@cache
def _cache_kept_here(kind: type[Any]) -> type[Any]:
    return type(f"Kept{kind.__name__}", (SequenceCache, kind), {})


@cache
def _layer_kept_here(kind: type[Any]) -> type[Any]:
    """``kind``, but for where it keeps what it keeps."""
    bases: list[type[Any]] = []
    if keeps_entries(kind):
        bases += [CompressedTokens, PagedTokens]
    if kind in TOKEN_LAYERS or kind in MIXED_LAYERS:
        bases.append(PagedTokens)
    if kind in STATE_LAYERS or kind in MIXED_LAYERS:
        bases.append(SlotStates)
    # The name of the layer's type would put the class into transformers' table of them.
    return type(f"Kept{kind.__name__}", (*bases, kind), {"_layer_type": None}) if bases else kind


class PagedTokens:
    """The tokens of an attention layer, kept in blocks. Lengths and windows are those of
    ``DynamicLayer`` and its kin."""

    def attach_blocks(self, layer: int, storage: ModuleStorage, rows: SequenceRows) -> None:
        self._layer, self._storage, self._rows = layer, storage, rows
        self._num_seen = self._num_indexed = rows.start
        self._window: int | None = getattr(self, "sliding_window", None)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(1, heads, num_rows, width) of the next rows -> the same of all that they may see."""
        begin = self._num_seen
        self._num_seen += key_states.shape[2]
        tokens = self._storage.tokens_of(self._layer, ATTENTION)
        self._write(tokens, begin, self._num_seen, key_states, value_states)
        first = 0 if self._window is None else max(0, begin - self._window + 1)
        return tokens.read(self._rows.block_ids, first, self._num_seen, key_states.dtype)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """(1, num_rows, width) of the next rows -> (1, num_tokens, width) of all."""
        assert isinstance(self, DynamicIndexedLayer)
        begin = self._num_indexed
        self._num_indexed += indexer_key_states.shape[1]
        tokens = self._storage.tokens_of(self._layer, INDEXER)
        self._write(tokens, begin, self._num_indexed, indexer_key_states, None)
        dtype = indexer_key_states.dtype
        keys: torch.Tensor = tokens.read(self._rows.block_ids, 0, self._num_indexed, dtype)[0]
        return keys

    def _write(
        self,
        tokens: TokenTensors,
        begin: int,
        end: int,
        keys: torch.Tensor,
        values: torch.Tensor | None,
    ) -> None:
        rows = self._rows
        assert end <= rows.end, "a layer receives each token once"
        tokens.write(rows.slots[begin - rows.start : end - rows.start], keys, values)

    def get_seq_length(self) -> int:
        return self._num_seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens ``update`` will give, and the position of the first of them."""
        first = 0 if self._window is None else max(0, self._num_seen - self._window + 1)
        return self._num_seen + query_length - first, first


class SlotStates:
    """The states of a layer that keeps any. The slot that was read is left as it was."""

    conv_states: dict[int, torch.Tensor | None]
    recurrent_states: dict[int, torch.Tensor | None]
    is_conv_states_initialized: dict[int, bool]
    is_recurrent_states_initialized: dict[int, bool]
    has_previous_state: dict[int, bool]
    conv_kernel_size: dict[int, int | None]

    def attach_slots(
        self, slots: dict[StateEntry, torch.Tensor], rows: SequenceRows, dtype: torch.dtype
    ) -> None:
        """A sequence without tokens has none."""
        self._slots, self._rows = slots, rows
        if rows.state_read == EMPTY_STATE:
            return
        for entry, states in slots.items():
            self._set(entry, read_state(entry, states, rows, dtype))
            self.has_previous_state[entry.index] = True

    def save_states(self) -> None:
        for entry, states in self._slots.items():
            kept = self.conv_states if entry.kind == "conv" else self.recurrent_states
            state = kept[entry.index]
            assert state is not None, "the module makes it in its first step"
            states[self._rows.state_write].copy_(state[0])

    def lazy_initialization(self, *_: Any, **given: Any) -> None:
        """Makes the states as transformers does, but without what compiled graphs need of a
        tensor."""
        index, width = given.get("state_idx", 0), given.get("conv_kernel_size")
        for entry in self._slots:
            found = given.get(f"{entry.kind}_states")
            if entry.index != index or found is None:
                continue
            width = width or found.shape[-1]
            shape = (*found.shape[:-1], width) if entry.kind == "conv" else found.shape
            self._set(entry, found.new_zeros(shape))

    def _set(self, entry: StateEntry, state: torch.Tensor) -> None:
        self.device, self.dtype = state.device, state.dtype
        if entry.kind == "conv":
            self.conv_states[entry.index] = state
            self.is_conv_states_initialized[entry.index] = True
            self.conv_kernel_size[entry.index] = state.shape[-1]
        else:
            self.recurrent_states[entry.index] = state
            self.is_recurrent_states_initialized[entry.index] = True
