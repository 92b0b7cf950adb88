"""Layers that keep, beside the keys of a window, one entry for every few tokens.

    tokens   0 1 2 3 | 4 5 6 7 | 8 9
    blocks         0         1           an entry lies at the last token of its group
    slots      4 5 6 7           8 9     the tokens so far of the next group, and those of the group
                                         before that the module reads again

The module decides what an entry is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from inference.models.module_cache import StateEntry, TokenEntry
from inference.models.transformers_backend.storage import (
    ModuleStorage,
    SequenceRows,
    read_state,
    state_entry,
)

KINDS = frozenset({"DeepseekV4CSACache", "DeepseekV4HCACache"})
"""The classes of transformers' cache layers that do so."""
BEGUN = ("buffer_kv", "buffer_gate")
"""Tables of the tokens so far of a group: (1, num_tokens, width) by name."""
BEFORE = ("overlap_kv", "overlap_gate")
"""Tables of the last whole group's overlap: (1, group, width / 2) by name. Only layers that look
back at it have them."""


def keeps_entries(kind: type[Any]) -> bool:
    return kind.__name__ in KINDS


def compressed_entries(layer: Any, index: int) -> Iterator[TokenEntry]:
    """The entries in blocks of a layer that a module has filled."""
    for name, entries in layer.compressed_kv.items():
        shape = 1, int(entries.shape[-1])
        yield TokenEntry(layer=index, part=name, key_shape=shape, value_shape=(0, 0))


def group_states(layer: Any, index: int) -> Iterator[StateEntry]:
    """The states in slots of a layer that a module has filled, maybe with less than a group."""
    for begun, before in zip(BEGUN, BEFORE, strict=True):
        for place, (name, tensor) in enumerate(getattr(layer, begun).items()):
            group, width = layer.compress_rate, int(tensor.shape[-1])
            yield state_entry(index, begun, place, (group, width), tensor.dtype)
            if name in getattr(layer, before, ()):
                yield state_entry(index, before, place, (group, width // 2), tensor.dtype)


class CompressedTokens:
    """Mixed into such a layer's class. The keys of its window lie in blocks like any other's."""

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
        """The layer's table in which the module reads ``entry``, and its name there."""
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
