"""The keys and values of every token that is in a block, one tensor per layer.

    layers[i]: (num_slots, 2, num_kv_heads, head_dim)      slot = block_id * block_tokens + offset
                           keys, values

The last block is scratch: padding rows write there. Which sequence owns which block is decided in
``inference.engine.kv_cache``; this file must not know sequences.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat

FORMAT_OF: dict[torch.dtype, KVFormat] = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
DTYPE_OF: dict[KVFormat, torch.dtype] = {word: dtype for dtype, word in FORMAT_OF.items()}


class PagedKV:
    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.scratch_slot = num_blocks * block_tokens
        shape = ((num_blocks + 1) * block_tokens, 2, config.num_kv_heads, config.head_dim)
        self.layers = [untouched_zeros(shape, dtype, device) for _ in range(config.num_layers)]


def untouched_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Like ``torch.zeros``, which writes every page of CPU memory at once: seconds for gigabytes.
    numpy leaves it to the kernel to hand out zeroed pages as blocks come into use."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
