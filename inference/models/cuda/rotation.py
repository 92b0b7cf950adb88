"""Norms of heads, rotation and the KV write of a step by one Triton kernel a layer, where torch's
operators need about ten."""

from __future__ import annotations

import torch
import triton

from inference.models.cache.kv_format import GROUP_FEATURES
from inference.models.cache.paged_kv import LARGEST_CODE, LayerKV
from inference.models.config import ModelConfig
from inference.models.cuda.rotation_kernels import rotate_kernel
from inference.models.layers.rope import RopeTable
from inference.models.layers.rotation import (
    AttentionWeights,
    RotatedHeads,
    Rotation,
    torch_rotation,
)
from inference.models.step_input import DeviceStep


def triton_rotation(config: ModelConfig, rope: RopeTable, step: DeviceStep) -> Rotation:
    """Steps with images, which are rotated by rows and columns, take torch's operators."""
    if step.images is not None and step.images.rotary is not None:
        return torch_rotation(config, rope, step)

    def rotate(weights: AttentionWeights, qkv: torch.Tensor, layer_kv: LayerKV) -> RotatedHeads:
        num_rows, num_heads, head_dim = len(qkv), config.num_heads, config.head_dim
        dtype = layer_kv.entries.dtype
        queries = qkv.new_empty(num_rows, num_heads, head_dim)
        rotate_kernel[(num_rows, num_heads + 2 * config.num_kv_heads)](
            qkv.contiguous(),
            weights.query_norm,
            weights.key_norm,
            rope.cosines,
            rope.sines,
            step.positions,
            step.slots,
            queries,
            layer_kv.entries,
            layer_kv.scales,
            config.rms_norm_eps,
            num_heads=num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            padded_groups=padded_groups(head_dim),
            group_features=GROUP_FEATURES,
            has_norm=weights.query_norm is not None,
            norms_rotated=config.is_qk_norm_after_rotation,
            has_scales=layer_kv.scales is not None,
            largest_code=LARGEST_CODE.get(dtype, 1.0),
            is_integer=dtype == torch.int8,
            num_warps=1,
        )
        return RotatedHeads(queries)

    return rotate


def padded_groups(head_dim: int) -> int:
    """The groups of a head's features that share a scale, as a power of two."""
    return int(triton.next_power_of_2(-(-head_dim // GROUP_FEATURES)))
