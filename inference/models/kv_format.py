"""The formats of keys and values: their sizes, the choice of one for a model, and the layers that
keep blocks of them or a state. Imports no torch: placement and preflight count with it.

    fp32, bf16, fp16    the numbers themselves
    int8, fp8           a byte each, and four bytes of scales for every group of features of a
                        token's key, and of its value, in a head; or of its latent

    layer   0        1        2        3          4 ...
            delta    delta    delta    attention  delta
            state    state    state    blocks     state
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.models.config import ATTENTION_KINDS, STATE_KINDS, ModelConfig
from inference.models.errors import UnsupportedKVError
from inference.models.layer_configs import StateShape, state_bytes

KVFormat = Literal["fp32", "bf16", "fp16", "int8", "fp8"]

ELEMENT_BYTES: dict[KVFormat, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
SCALED_FORMATS: frozenset[KVFormat] = frozenset({"int8", "fp8"})
SCALE_BYTES = 4
GROUP_FEATURES = 64
"""The number of features of a head that share four bytes of scales; the last group may be
smaller."""

NATIVE_FORMATS: tuple[KVFormat, ...] = ("fp32", "bf16", "int8")
"""Formats of the native decoder; its own choice is ``native.library.automatic_kv_format``."""
TORCH_FORMATS: dict[str, tuple[KVFormat, ...]] = {
    "cpu": ("fp32", "bf16", "fp16", "int8", "fp8"),
    "cuda": ("fp32", "bf16", "fp16", "int8", "fp8"),
}
"""Formats of torch's operators by type of device; their own choice is the activations' dtype."""

FP8_CAPABILITY = (8, 9)
"""The compute capability since which cards convert and multiply fp8 (e4m3): Triton compiles no
kernel that reads it for older ones."""


def cuda_formats(capability: tuple[int, int]) -> tuple[KVFormat, ...]:
    """Formats on a card of this compute capability, by attention and rotation in Triton's
    kernels."""
    formats = TORCH_FORMATS["cuda"]
    return tuple(f for f in formats if f != "fp8" or capability >= FP8_CAPABILITY)


def kv_bytes_per_token(config: ModelConfig, kv_format: KVFormat) -> int:
    """Bytes of one token's keys and values in all layers that have them."""
    layers = cache_layout(config).attention_layers
    return sum(_layer_bytes(config, index, kv_format) for index in layers)


def kv_bytes_of_layer(config: ModelConfig, index: int, kv_format: KVFormat) -> int:
    """Bytes of one token's keys and values in one layer; 0 where it has none."""
    if index not in cache_layout(config).attention_layers:
        return 0
    return _layer_bytes(config, index, kv_format)


def _layer_bytes(config: ModelConfig, index: int, kv_format: KVFormat) -> int:
    heads, width = config.kv_shapes[index]
    return config.kv_vectors * heads * _head_bytes(width, kv_format)


def _head_bytes(width: int, kv_format: KVFormat) -> int:
    """Bytes of one head's key, or value, of a token; or of a token's latent."""
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
    """Bytes of blocks, the scratch block and state slots."""
    block_bytes = kv_bytes_per_block(config, block_tokens, kv_format)
    state_bytes = cache_layout(config).state_bytes_per_slot
    return (num_blocks + 1) * block_bytes + num_state_slots * state_bytes


def choose_kv_format(
    wanted: KVFormat | None,
    automatic: KVFormat,
    *,
    device_type: str,
    is_native: bool,
    capability: tuple[int, int] | None = None,
) -> KVFormat:
    """``wanted``, or where that is ``None`` what suits the path, ``automatic``. ``capability``: the
    card's compute capability, or ``None`` where there is no card.
    Raises ``UnsupportedKVError``, naming what can be had."""
    formats = NATIVE_FORMATS if is_native else TORCH_FORMATS[device_type]
    if wanted is None:
        return automatic
    if capability is not None and wanted not in cuda_formats(capability):
        has, needs = (".".join(map(str, numbers)) for numbers in (capability, FP8_CAPABILITY))
        raise UnsupportedKVError(
            f"kv_dtype {wanted} needs a card of compute capability {needs} or more, and this one "
            f"has {has}; set it to int8, which takes as much memory, or to auto"
        )
    if wanted not in formats:
        path = "the native decoder" if is_native else "torch operators"
        raise UnsupportedKVError(
            f"kv_dtype {wanted} is not built for {path} on {device_type}; set it to auto or to "
            f"one of {', '.join(formats)}"
        )
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    attention_layers: tuple[int, ...]
    """Layers whose keys and values lie in blocks."""
    state_layers: tuple[int, ...] = ()
    """Layers that keep a state in a slot."""
    state: StateShape | None = None
    """The shape of each of those states."""
    module_state_bytes: int = 0
    """Bytes of a slot where a module of the transformers backend keeps the states."""

    @property
    def has_states(self) -> bool:
        return bool(self.state_layers)

    @property
    def state_bytes_per_slot(self) -> int:
        """Bytes of the states of all layers; 0 without recurrent ones."""
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
