"""The contents of a module's cache, in our blocks and state slots.

    blocks    a pair of (heads, width) for each entry of each token     LayerKV
    slots     (num_state_slots, *shape) for each state                  float32

States that modules keep apart from transformers' cache have one shape however long the sequence is,
and lie in state slots too. Some layers keep, beside the keys of a window, one entry for every few
tokens, which the module makes:

    tokens   0 1 2 3 | 4 5 6 7 | 8 9
    blocks         0         1           an entry lies at the last token of its group
    slots      4 5 6 7           8 9     the tokens so far of the next group, and those of the group
                                         before that the module reads again"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicCache

from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat
from inference.models.layer_configs import OWN_KIND, ModuleCache, StateEntry, TokenEntry
from inference.models.paged_kv import LayerKV, PagedKV, lazy_zeros
from inference.models.step_input import EMPTY_STATE, LONE_STATE, StepInput


class ModuleStorage(PagedKV):
    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        kv_format: KVFormat,
        device: torch.device,
        num_state_slots: int,
    ) -> None:
        super().__init__(config, num_blocks, block_tokens, kv_format, device)
        assert config.module_cache is not None, "its cache is known by now"
        self._cache: ModuleCache = config.module_cache
        self._states = {
            entry: lazy_zeros((num_state_slots, *entry.shape), torch.float32, device)
            for entry in self._cache.states
        }

    def tokens_of(self, layer: int, part: str) -> TokenTensors:
        place, entry = next(
            (place, entry)
            for place, entry in enumerate(self._cache.tokens)
            if (entry.layer, entry.part) == (layer, part)
        )
        layer_kv = self.layers[place]
        assert isinstance(layer_kv, LayerKV)
        return TokenTensors(entry, layer_kv, self.block_tokens)

    def states_of(self, layer: int) -> dict[StateEntry, torch.Tensor]:
        return {
            entry: slots
            for entry, slots in self._states.items()
            if entry.layer == layer and entry.kind != OWN_KIND
        }

    def own_states(self) -> dict[StateEntry, torch.Tensor]:
        return {entry: slots for entry, slots in self._states.items() if entry.kind == OWN_KIND}


@dataclass(frozen=True, slots=True)
class TokenTensors:
    entry: TokenEntry
    layer_kv: LayerKV
    block_tokens: int

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor | None) -> None:
        """(1, heads, num_tokens, width) each, (1, num_tokens, width) of keys alone."""
        if values is None:
            pair = self._in_halves(keys[0])
        elif self.entry.is_even:
            pair = keys[0].transpose(0, 1), values[0].transpose(0, 1)
        else:
            flat = [heads[0].transpose(0, 1).flatten(1) for heads in (keys, values)]
            pair = self._in_halves(torch.cat(flat, dim=1))
        self.layer_kv.write(slots, *pair)

    def read(
        self, block_ids: torch.Tensor, first: int, end: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions [first, end), as written; values are meaningless where only keys are kept."""
        size = self.block_tokens
        blocks = block_ids[first // size : -(-end // size)]
        skipped = first % size
        pairs = self.layer_kv.gather(blocks, size, dtype)[skipped : skipped + end - first]
        if self.entry.is_even:
            keys, values = pairs.permute(1, 2, 0, 3).unsqueeze(1)
            return keys, values
        flat, num_tokens = pairs.flatten(1), end - first
        of_keys = math.prod(self.entry.key_shape)
        of_values = math.prod(self.entry.value_shape)
        keys, values = torch.split(flat[:, : of_keys + of_values], [of_keys, of_values], dim=1)
        if not self.entry.has_values:
            return keys.unsqueeze(0), values
        keys = keys.view(1, num_tokens, *self.entry.key_shape).transpose(1, 2)
        return keys, values.view(1, num_tokens, *self.entry.value_shape).transpose(1, 2)

    def _in_halves(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(num_tokens, features) -> twice (num_tokens, 1, half of them)."""
        half = self.entry.kv_shape[1]
        padded = pad(flat, (0, 2 * half - flat.shape[1])).unsqueeze(1)
        first, second = torch.split(padded, half, dim=2)
        return first, second


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Rows [first_row, last_row) of a step: positions [start, end) of one sequence."""

    first_row: int
    last_row: int
    start: int
    slots: torch.Tensor
    block_ids: torch.Tensor
    state_read: int
    state_write: int

    @property
    def end(self) -> int:
        return self.start + self.last_row - self.first_row


def sequences_of(
    step: StepInput, slots: torch.Tensor, block_table: torch.Tensor
) -> Iterator[SequenceRows]:
    """``slots`` and ``block_table`` are the step's, on the device."""
    num_seqs = len(step.context_lens)
    reads, writes = (
        [lone] * num_seqs if given is None else given.tolist()
        for given, lone in ((step.state_reads, EMPTY_STATE), (step.state_writes, LONE_STATE))
    )
    ends = step.context_lens.tolist()
    for index, (first_row, last_row) in enumerate(pairwise(step.query_start.tolist())):
        yield SequenceRows(
            first_row,
            last_row,
            ends[index] - (last_row - first_row),
            slots[first_row:last_row],
            block_table[index],
            reads[index],
            writes[index],
        )


def state_entry(
    layer: int, kind: str, index: int, shape: Sequence[int], dtype: torch.dtype
) -> StateEntry:
    is_computed_in = dtype.is_floating_point and dtype != torch.float32
    return StateEntry(
        layer=layer,
        kind=kind,
        index=index,
        shape=tuple(shape),
        dtype=None if is_computed_in else str(dtype).removeprefix("torch."),
    )


def read_state(
    entry: StateEntry, slots: torch.Tensor, rows: SequenceRows, dtype: torch.dtype
) -> torch.Tensor:
    """(1, *shape), a copy: modules change a state in place."""
    kept_in = dtype if entry.dtype is None else getattr(torch, entry.dtype)
    return slots[rows.state_read].to(kept_in, copy=True)[None]


COMPRESSED_KINDS = frozenset({"DeepseekV4CSACache", "DeepseekV4HCACache"})
"""Classes of transformers' cache layers that keep an entry for every few tokens."""
BEGUN = ("buffer_kv", "buffer_gate")
"""Tables of the tokens so far of a group: (1, num_tokens, width) by name."""
BEFORE = ("overlap_kv", "overlap_gate")
"""The last whole group's: (1, group, width / 2) by name, where a layer looks back at it."""


def compresses_tokens(kind: type[Any]) -> bool:
    return kind.__name__ in COMPRESSED_KINDS


def compressed_entries(layer: Any, index: int) -> Iterator[TokenEntry]:
    for name, entries in layer.compressed_kv.items():
        shape = 1, int(entries.shape[-1])
        yield TokenEntry(layer=index, part=name, key_shape=shape, value_shape=(0, 0))


def group_states(layer: Any, index: int) -> Iterator[StateEntry]:
    """The module may have filled the layer with less than a group."""
    for begun, before in zip(BEGUN, BEFORE, strict=True):
        for place, (name, tensor) in enumerate(getattr(layer, begun).items()):
            group, width = layer.compress_rate, int(tensor.shape[-1])
            yield state_entry(index, begun, place, (group, width), tensor.dtype)
            if name in getattr(layer, before, ()):
                yield state_entry(index, before, place, (group, width // 2), tensor.dtype)


class CompressedTokens:
    compress_rate: int
    compressed_kv: dict[str, torch.Tensor | None]
    entry_count: dict[str, int]
    _layer: int
    _storage: ModuleStorage

    def attach_slots(
        self, slots: dict[StateEntry, torch.Tensor], rows: SequenceRows, dtype: torch.dtype
    ) -> None:
        self._slots, self._rows = slots, rows
        num_entries, num_begun = divmod(rows.start, self.compress_rate)
        self.entry_count = dict.fromkeys(self.entry_count, num_entries)
        for entry, states in slots.items():
            kept, name = self._place(entry)
            state = read_state(entry, states, rows, dtype)
            if entry.kind in BEGUN and num_begun:
                kept[name] = state[:, :num_begun]
            if entry.kind in BEFORE and num_entries:
                kept[name] = state

    def save_states(self) -> None:
        for entry, states in self._slots.items():
            kept, name = self._place(entry)
            if (state := kept[name]) is not None:
                states[self._rows.state_write, : state.shape[1]].copy_(state[0])

    def _place(self, entry: StateEntry) -> tuple[dict[str, torch.Tensor | None], str]:
        return getattr(self, entry.kind), list(self.compressed_kv)[entry.index]

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """(1, num_new, width) -> (1, num_entries, width) of all."""
        group, rows, begin = self.compress_rate, self._rows, self.entry_count[name]
        end = self.entry_count[name] = begin + compressed.shape[1]
        if not end:
            return compressed
        tokens = self._storage.tokens_of(self._layer, name)
        if begin < end:
            first, last = ((count + 1) * group - 1 - rows.start for count in (begin, end - 1))
            tokens.write(rows.slots[first : last + 1 : group], compressed, None)
        found = tokens.read(rows.block_ids, 0, end * group, compressed.dtype)[0]
        return found[:, group - 1 :: group]


class OwnStates:
    """Of a module that keeps none apart from ``cache``."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        """``states``: the module may change them; ``None`` before a sequence's first token.
        ``cache``: ours; ``None`` where the module makes one."""
        return {} if cache is None else {"past_key_values": cache, "cache_params": cache}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        """(1, ...) each, always in the same order."""
        return []


class StateArgument(OwnStates):
    """RWKV takes a list of tensors as an argument and gives it back. Each is of all layers."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        return {"state": states}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return list(output.state)


class RecurrentCache(OwnStates):
    """xLSTM has a cache of its own, which is no ``Cache``: several tensors a layer."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        if states is None:
            return {}
        from transformers.models.xlstm.modeling_xlstm import xLSTMCache

        made = xLSTMCache(module.config, 1, dtype=states[0].dtype, device=states[0].device)
        for kept, state in zip(self._tensors(made), states, strict=True):
            kept.copy_(state)
        return {"cache_params": made}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return self._tensors(output.cache_params)

    def _tensors(self, cache: Any) -> list[torch.Tensor]:
        return [tensor for layer in cache.rnn_state.values() for tensor in layer]


class BesideLayers(OwnStates):
    """MiniMax's cache has a list beside its layers: a tensor for each layer of linear attention."""

    def arguments(
        self, module: Any, cache: Any, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        if cache is None:
            return {}
        left = iter(states or ())
        cache.linear_cache = [
            next(left, None) if kind == "linear_attention" else None
            for kind in module.config.layer_types
        ]
        return {"past_key_values": cache}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        kept = output.past_key_values.linear_cache
        return [state for state in kept if isinstance(state, torch.Tensor)]


class ModuleAttributes(OwnStates):
    """RecurrentGemma keeps two tensors in attributes of each of its recurrent blocks."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        left = iter(states or ())
        for block in self._blocks(module):
            block.conv1d_state = next(left, None)
            block.rg_lru.recurrent_states = next(left, None)
        # Without a cache the module makes one, and does not give it back.
        return {"past_key_values": DynamicCache(config=module.config) if cache is None else cache}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return [
            state
            for block in self._blocks(module)
            for state in (block.conv1d_state, block.rg_lru.recurrent_states)
        ]

    def _blocks(self, module: Any) -> list[Any]:
        blocks = (layer.temporal_block for layer in module.model.layers)
        return [block for block in blocks if hasattr(block, "conv1d_state")]


OWN_STATES: dict[str, OwnStates] = {
    "minimax": BesideLayers(),
    "recurrent_gemma": ModuleAttributes(),
    "rwkv": StateArgument(),
    "xlstm": RecurrentCache(),
}


def own_states_of(module: Any) -> OwnStates:
    return OWN_STATES.get(module.config.model_type, OwnStates())
