"""Keys and values of the native decoder, and the states of its layers that keep any."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.cache.kv_format import cache_layout
from inference.models.cache.paged_kv import lazy_zeros
from inference.models.config import ModelConfig
from inference.models.native.batch import States
from inference.models.native.decoder import NativeDecoder

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class NativeKV:
    """``keys`` and ``values`` (layers with attention, num_blocks, num_kv_heads, bytes of a block
    and head), in the order that element_attention.h and int8_attention.h document. Latents lie in
    ``keys``, token by token (latent_attention.h), and ``values`` is empty."""

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    scratch_slot: int
    states: States | None = None
    """The states of layers that keep a state instead."""

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        """Views of one block, by name."""
        views = {"keys": self.keys[:, block_id], "values": self.values[:, block_id]}
        return {name: view for name, view in views.items() if view.numel()}


def new_native_kv(
    decoder: NativeDecoder, config: ModelConfig, num_blocks: int, num_state_slots: int = 0
) -> NativeKV:
    """Room for ``num_blocks`` blocks of the decoder's layers, which are those of ``config``, and
    one block more: the last is scratch, where padding rows write."""
    layout = cache_layout(config)
    num_layers = len(layout.attention_layers)
    shape = (num_layers, num_blocks + 1, config.num_kv_heads, decoder.kv_region_bytes)
    # Small pages keep memory down, and slow long contexts of the wider formats down as well
    # (decision 14).
    huge_pages = decoder.kv_format != "int8"
    # Latents are not kept twice.
    shapes = shape, shape if config.kv_vectors == 2 else (*shape[:-1], 0)
    keys, values = (lazy_zeros(each, torch.uint8, CPU, huge_pages=huge_pages) for each in shapes)
    return NativeKV(
        keys=keys,
        values=values,
        block_tokens=decoder.block_tokens,
        scratch_slot=num_blocks * decoder.block_tokens,
        states=_new_states(config, len(layout.state_layers), num_state_slots),
    )


def _new_states(config: ModelConfig, num_layers: int, num_slots: int) -> States | None:
    shape = config.state
    if shape is None:
        return None
    slots = num_layers, num_slots
    shapes = (*slots, *shape.conv_shape), (*slots, *shape.recurrent_shape)
    return States(*(lazy_zeros(shape, torch.float32, CPU) for shape in shapes))
