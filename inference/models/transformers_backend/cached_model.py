"""A decoder of transformers with its own cache over our blocks and state slots, for modules whose
layers do not all attend through transformers' attention interface. Sequences run one by one.

    module ─▶ SequenceCache ─▶ PagedTokens ─▶ blocks      keys and values, indexer's keys
                          └──▶ SlotStates ──▶ slots       states: read from one, written to another

The cache and its layers stay of transformers' own classes, so that type checks in modules get the
same answer; only their storage differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicIndexedLayer

from inference.models.config import ModelConfig
from inference.models.families.transformers_types import ROW_BY_ROW_TYPES
from inference.models.kv_format import KVFormat
from inference.models.layer_configs import ATTENTION_PART, INDEXER_PART, StateEntry
from inference.models.step_input import EMPTY_STATE, StepInput, all_on_device, check_positions
from inference.models.transformers_backend.detection import (
    MIXED_LAYERS,
    STATE_LAYERS,
    TOKEN_LAYERS,
    Layer,
    accepted,
    detect_cache,
    with_detected,
)
from inference.models.transformers_backend.hub_module import ModuleBackend, load_module
from inference.models.transformers_backend.storage import (
    CompressedTokens,
    ModuleStorage,
    SequenceRows,
    TokenTensors,
    compresses_tokens,
    own_states_of,
    read_state,
    sequences_of,
)
from inference.models.weight_source import WeightSource


class SequenceCache(Cache):  # type: ignore[misc]
    """For the rows of one sequence in one step. ``save_states`` ends it."""

    own_states: list[torch.Tensor] | None
    """The caller replaces them after each forward. ``None`` before a sequence's first token."""

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
    bases: list[type[Any]] = []
    if compresses_tokens(kind):
        bases += [CompressedTokens, PagedTokens]
    if kind in TOKEN_LAYERS or kind in MIXED_LAYERS:
        bases.append(PagedTokens)
    if kind in STATE_LAYERS or kind in MIXED_LAYERS:
        bases.append(SlotStates)
    # The name of the layer's type would put the class into transformers' table of them.
    return type(f"Kept{kind.__name__}", (*bases, kind), {"_layer_type": None}) if bases else kind


class PagedTokens:
    """Lengths and windows are those of ``DynamicLayer`` and its kin."""

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
        tokens = self._storage.tokens_of(self._layer, ATTENTION_PART)
        self._write(tokens, begin, self._num_seen, key_states, value_states)
        first = 0 if self._window is None else max(0, begin - self._window + 1)
        return tokens.read(self._rows.block_ids, first, self._num_seen, key_states.dtype)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """(1, num_rows, width) of the next rows -> (1, num_tokens, width) of all."""
        assert isinstance(self, DynamicIndexedLayer)
        begin = self._num_indexed
        self._num_indexed += indexer_key_states.shape[1]
        tokens = self._storage.tokens_of(self._layer, INDEXER_PART)
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
        """The number of tokens that ``update`` will give, and the position of the first."""
        first = 0 if self._window is None else max(0, self._num_seen - self._window + 1)
        return self._num_seen + query_length - first, first


class SlotStates:
    """The slot that was read is left as it was."""

    conv_states: dict[int, torch.Tensor | None]
    recurrent_states: dict[int, torch.Tensor | None]
    is_conv_states_initialized: dict[int, bool]
    is_recurrent_states_initialized: dict[int, bool]
    has_previous_state: dict[int, bool]
    conv_kernel_size: dict[int, int | None]

    def attach_slots(
        self, slots: dict[StateEntry, torch.Tensor], rows: SequenceRows, dtype: torch.dtype
    ) -> None:
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
        """As transformers does it, but without what compiled graphs need of a tensor."""
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


class CachedModel(ModuleBackend):
    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        """Raises ``UnsupportedModuleError`` and ``MissingWeightsError``."""
        super().__init__(config, weights, context_tokens, kv_format)
        self._module, self._passed_over = load_module(config, weights, attention=None)
        found = detect_cache(self._module)
        self.config = with_detected(config, found)
        self._detected = found
        self._own_states = own_states_of(self._module)
        self._continues_by_rows = config.architecture in ROW_BY_ROW_TYPES

    @property
    def execution(self) -> str:
        rows = ", row by row where a prompt continues" if self._continues_by_rows else ""
        return (
            f"transformers' {type(self._module).__name__} with its own cache, one sequence after "
            f"the other{rows}: much slower than a family that this build computes itself"
            f"{self._passed_over}"
        )

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> ModuleStorage:
        return ModuleStorage(
            self.config, num_blocks, block_tokens, self.kv_format, self.device, num_state_slots
        )

    @torch.inference_mode()
    def forward(self, step: StepInput, kv: ModuleStorage) -> torch.Tensor:
        check_positions(step.longest_context, self._num_positions)
        step = step.with_all_ids()
        arrays = [step.token_ids, step.positions, step.slots, step.block_table]
        token_ids, positions, slots, block_table = all_on_device(self.device, indices=arrays)
        inputs = {"input_ids": token_ids, "position_ids": positions}
        wanted = range(len(token_ids)) if step.logit_rows is None else step.logit_rows.tolist()
        logits = torch.empty(
            (len(wanted), self.config.vocab_size), dtype=torch.float32, device=self.device
        )
        for rows in sequences_of(step, slots, block_table):
            places = [i for i, row in enumerate(wanted) if rows.first_row <= row < rows.last_row]
            found = self._run(inputs, rows, [wanted[place] for place in places], kv)
            if places:
                logits[places] = found.float()
        return logits

    def _run(
        self,
        inputs: dict[str, torch.Tensor],
        rows: SequenceRows,
        kept: list[int],
        kv: ModuleStorage,
    ) -> torch.Tensor:
        kind: Any = self._detected.cache_kind
        cache = _cache_kept_here(kind)(self._detected.layers, kv, rows, self.dtype)
        at_once = rows.last_row - rows.first_row
        if self._continues_by_rows and rows.start:
            at_once = 1
        parts = []
        for first in range(rows.first_row, rows.last_row, at_once):
            part = slice(first, min(first + at_once, rows.last_row))
            inner = [row - first for row in kept if first <= row < part.stop]
            parts.append(self._forward(inputs, part, inner, cache))
        cache.save_states()
        return torch.cat(parts)

    def _forward(
        self, inputs: dict[str, torch.Tensor], part: slice, kept: list[int], cache: SequenceCache
    ) -> torch.Tensor:
        keep: Any = torch.tensor(kept, dtype=torch.int64, device=self.device)
        arguments = accepted(
            self._module,
            {
                **{name: rows[None, part] for name, rows in inputs.items()},
                "use_cache": True,
                "logits_to_keep": keep,
                **self._own_states.arguments(self._module, cache, cache.own_states),
            },
        )
        output = self._module(**arguments)
        cache.own_states = self._own_states.left_by(self._module, output)
        logits: torch.Tensor = output.logits[0]
        return logits if "logits_to_keep" in arguments else logits.index_select(0, keep)
