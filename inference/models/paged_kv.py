"""Keys and values of tokens in blocks, one pair of tensors per layer; and the states of recurrent
layers, in slots.

    entries: (num_slots, 2, num_kv_heads, head_dim)        slot = block_id * block_tokens + offset
                         keys, values
    scales:  (num_slots, 2, num_kv_heads, num_groups)      of int8 and fp8 only: see ``kv_format``
    conv         (num_slots, *StateShape.conv_shape)                    float32
    recurrent    (num_slots, *StateShape.recurrent_shape)               float32

Latent attention keeps one vector of one head in place of the two: a token's latent and rotated key.
The last block is scratch: padding rows write there. A step reads one slot of a sequence's state and
writes another. State slot 0 is zero: a sequence without tokens starts from it. Which sequence owns
which block and slot is decided in ``inference.engine.kv_cache``.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from inference.models.config import ATTENTION_KINDS, STATE_KINDS, ModelConfig
from inference.models.errors import UnsupportedKVError
from inference.models.kv_format import (
    FP8_CAPABILITY,
    GROUP_FEATURES,
    NATIVE_FORMATS,
    KVFormat,
    cuda_formats,
)
from inference.models.layer_configs import StateShape
from inference.models.native.library import automatic_kv_format

DTYPE_OF: dict[KVFormat, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
FORMAT_OF: dict[torch.dtype, KVFormat] = {dtype: word for word, dtype in DTYPE_OF.items()}
LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).max}


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Where there are ``scales``, a value is its entry times its group's scale."""

    entries: torch.Tensor
    scales: torch.Tensor | None = None

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store (num_tokens, kv_heads, head_dim) keys and values at ``slots``."""
        self.write_vectors(slots, torch.stack((keys, values), dim=1))

    def write_vectors(self, slots: torch.Tensor, vectors: torch.Tensor) -> None:
        """Store (num_tokens, vectors, kv_heads, head_dim) at ``slots``."""
        if self.scales is None:
            self.entries.index_copy_(0, slots, vectors.to(self.entries.dtype))
            return
        codes, scales = quantize(vectors, self.entries.dtype)
        # As bytes: torch has no index_copy_ of fp8.
        self.entries.view(torch.uint8).index_copy_(0, slots, codes.view(torch.uint8))
        self.scales.index_copy_(0, slots, scales)

    def gather(
        self, block_ids: torch.Tensor, block_tokens: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Whole blocks, copied: (blocks * block_tokens, vectors, kv_heads, head_dim)."""
        if self.scales is None:
            return _blocks(self.entries, block_ids, block_tokens).to(dtype)
        codes = _blocks(self.entries.view(torch.uint8), block_ids, block_tokens)
        scales = _blocks(self.scales, block_ids, block_tokens)
        return dequantize(codes.view(self.entries.dtype), scales).to(dtype)


class PagedKV:
    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        kv_format: KVFormat,
        device: torch.device,
        num_state_slots: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.scratch_slot = num_blocks * block_tokens
        self.scratch_state_slot = max(num_state_slots - 1, 0)
        """The last: only a backend that captures steps writes there, and asks for one more."""
        num_slots = (num_blocks + 1) * block_tokens
        self.layers: list[LayerKV | LayerState] = [
            new_layer_state(num_state_slots, config.state, device)
            if kind in STATE_KINDS and config.state is not None
            else new_layer(
                num_slots,
                *(heads if kind in ATTENTION_KINDS else (0, 0)),
                kv_format,
                device,
                num_vectors=config.kv_vectors,
            )
            for heads, kind in zip(config.kv_shapes, config.mixer_kinds, strict=True)
        ]

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        slots = slice(block_id * self.block_tokens, (block_id + 1) * self.block_tokens)
        views = {}
        for index, layer in enumerate(self.layers):
            if not isinstance(layer, LayerKV) or not layer.entries.numel():
                continue
            views[f"{index}.entries"] = layer.entries[slots]
            if layer.scales is not None:
                views[f"{index}.scales"] = layer.scales[slots]
        return views


def new_layer(
    num_slots: int,
    num_kv_heads: int,
    head_dim: int,
    kv_format: KVFormat,
    device: torch.device,
    *,
    num_vectors: int = 2,
) -> LayerKV:
    """Zeroed. ``num_vectors``: of each token and head."""
    dtype = DTYPE_OF[kv_format]
    entries = lazy_zeros((num_slots, num_vectors, num_kv_heads, head_dim), dtype, device)
    if dtype not in LARGEST_CODE:
        return LayerKV(entries)
    num_groups = -(-head_dim // GROUP_FEATURES)
    shape = (num_slots, num_vectors, num_kv_heads, num_groups)
    return LayerKV(entries, lazy_zeros(shape, torch.float32, device))


def quantize(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(..., head_dim) -> codes of ``dtype``, and float32 (..., num_groups) scales. A NaN makes its
    group's scale NaN, so that it reaches the logits."""
    groups = _groups(values.float())
    largest = groups.abs().amax(dim=-1)
    scales = torch.where(largest == 0, 1.0, largest / LARGEST_CODE[dtype])
    codes = (groups / scales.unsqueeze(-1)).flatten(-2)[..., : values.shape[-1]]
    if dtype == torch.int8:
        codes = codes.round()
    return codes.to(dtype).contiguous(), scales


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32, of ``codes``' shape."""
    values = _groups(codes.float()) * scales.unsqueeze(-1)
    return values.flatten(-2)[..., : codes.shape[-1]]


def _groups(values: torch.Tensor) -> torch.Tensor:
    """(..., features) -> (..., num_groups, GROUP_FEATURES), filled up with zeros."""
    missing = -values.shape[-1] % GROUP_FEATURES
    filled = pad(values, (0, missing)) if missing else values
    return filled.reshape(*filled.shape[:-1], -1, GROUP_FEATURES)


def _blocks(slots: torch.Tensor, block_ids: torch.Tensor, block_tokens: int) -> torch.Tensor:
    by_block = slots.view(slots.shape[0] // block_tokens, -1)
    return by_block.index_select(0, block_ids).view(-1, *slots.shape[1:])


@dataclass(frozen=True, slots=True)
class LayerState:
    """A layer's states in slots, or those that rows read or write."""

    conv: torch.Tensor
    recurrent: torch.Tensor


def new_layer_state(num_slots: int, shape: StateShape, device: torch.device) -> LayerState:
    return LayerState(
        lazy_zeros((num_slots, *shape.conv_shape), torch.float32, device),
        lazy_zeros((num_slots, *shape.recurrent_shape), torch.float32, device),
    )


def lazy_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, huge_pages: bool = False
) -> torch.Tensor:
    """Unlike ``torch.zeros``, writes no CPU memory: gigabytes would take seconds. A block lies in
    two places of each layer, so with ``huge_pages`` the first token takes a hundred megabytes."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)


def kv_format_on(
    device: torch.device, wanted: KVFormat | None, dtype: torch.dtype, *, is_native: bool
) -> KVFormat:
    """``wanted`` ``None``: the path's own. Raises ``UnsupportedKVError``."""
    if wanted is None:
        return automatic_kv_format() if is_native else FORMAT_OF[dtype]
    # Only where an answer depends on it, so that a load can be planned where the card is not.
    if wanted == "fp8" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if wanted not in cuda_formats(capability):
            has, needs = (".".join(map(str, pair)) for pair in (capability, FP8_CAPABILITY))
            raise UnsupportedKVError(
                f"kv_dtype {wanted} needs a card of compute capability {needs} or more, and this "
                f"one has {has}; set it to int8, which takes as much memory, or to auto"
            )
    if is_native and wanted not in NATIVE_FORMATS:
        raise UnsupportedKVError(
            f"kv_dtype {wanted} is not built for the native decoder on {device.type}; set it to "
            f"auto or to one of {', '.join(NATIVE_FORMATS)}"
        )
    return wanted
