"""KV formats and their sizes; and which layers keep blocks or a state. Imports no
torch: placement and preflight count with it.

    fp32, bf16, fp16    the numbers themselves
    int8, fp8           a byte each, and four bytes of scale for every group of features of a
                        head's key, value or latent
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.models.config import ATTENTION_KINDS, STATE_KINDS, ModelConfig
from inference.models.layer_configs import StateShape, state_bytes

KVFormat = Literal["fp32", "bf16", "fp16", "int8", "fp8"]

ELEMENT_BYTES: dict[KVFormat, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
SCALED_FORMATS: frozenset[KVFormat] = frozenset({"int8", "fp8"})
SCALE_BYTES = 4
GROUP_FEATURES = 64
"""Features of a head that share a scale; the last group may be smaller."""

NATIVE_FORMATS: tuple[KVFormat, ...] = ("fp32", "bf16", "int8")
FP8_CAPABILITY = (8, 9)
"""Triton compiles no kernel that reads fp8 (e4m3) for older cards."""


def cuda_formats(capability: tuple[int, int]) -> tuple[KVFormat, ...]:
    return tuple(f for f in ELEMENT_BYTES if f != "fp8" or capability >= FP8_CAPABILITY)


def kv_bytes_per_token(config: ModelConfig, kv_format: KVFormat) -> int:
    layers = cache_layout(config).attention_layers
    return sum(_layer_bytes(config, index, kv_format) for index in layers)


def kv_bytes_of_layer(config: ModelConfig, index: int, kv_format: KVFormat) -> int:
    """0: the layer has none."""
    if index not in cache_layout(config).attention_layers:
        return 0
    return _layer_bytes(config, index, kv_format)


def _layer_bytes(config: ModelConfig, index: int, kv_format: KVFormat) -> int:
    heads, width = config.kv_shapes[index]
    return config.kv_vectors * heads * _head_bytes(width, kv_format)


def _head_bytes(width: int, kv_format: KVFormat) -> int:
    num_groups = -(-width // GROUP_FEATURES) if kv_format in SCALED_FORMATS else 0
    return width * ELEMENT_BYTES[kv_format] + num_groups * SCALE_BYTES


def kv_bytes_per_block(config: ModelConfig, block_tokens: int, kv_format: KVFormat) -> int:
    return kv_bytes_per_token(config, kv_format) * block_tokens


def cache_bytes(
    config: ModelConfig,
    kv_format: KVFormat,
    num_blocks: int,
    block_tokens: int,
    num_state_slots: int = 0,
) -> int:
    """The scratch block included."""
    block_bytes = kv_bytes_per_block(config, block_tokens, kv_format)
    state_bytes = cache_layout(config).state_bytes_per_slot
    return (num_blocks + 1) * block_bytes + num_state_slots * state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    attention_layers: tuple[int, ...]
    state_layers: tuple[int, ...] = ()
    state: StateShape | None = None
    module_state_bytes: int = 0
    """Where a module of the transformers backend keeps the states."""

    @property
    def has_states(self) -> bool:
        return bool(self.state_layers)

    @property
    def state_bytes_per_slot(self) -> int:
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
