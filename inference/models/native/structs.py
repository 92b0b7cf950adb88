"""The structs of model.h, linear.h and draw.h, field by field, and what fills them.

They point at tensors, and keep none alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from inference.models.native.packing import SUPER_BLOCK_FORMATS, Format, PackedLinear
from inference.models.step_input import Ints
from inference.models.weights.stored import GROUP_FEATURES, SUPER_BLOCK_FEATURES

MAX_PARTS = 4
"""``kMaxParts`` of linear.h."""


class CLinear(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_int32),
        ("in_features", ctypes.c_int32),
        ("out_features", ctypes.c_int32),
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("values", ctypes.c_int8 * 16),
        ("unit", ctypes.c_float),
    ]


class CProjection(ctypes.Structure):
    _fields_ = [
        ("num_parts", ctypes.c_int32),
        ("parts", CLinear * MAX_PARTS),
    ]


class CExperts(ctypes.Structure):
    _fields_ = [
        ("num_experts", ctypes.c_int32),
        ("per_token", ctypes.c_int32),
        ("intermediate_size", ctypes.c_int32),
        ("scoring", ctypes.c_int32),
        ("normalizes", ctypes.c_int32),
        ("has_shared", ctypes.c_int32),
        ("weighs_inputs", ctypes.c_int32),
        ("num_groups", ctypes.c_int32),
        ("groups_per_token", ctypes.c_int32),
        ("group_experts", ctypes.c_int32),
        ("weight_scale", ctypes.c_float),
        ("choice_bias", ctypes.c_void_p),
        ("router", CLinear),
        ("gate_up", ctypes.POINTER(CProjection)),
        ("down", ctypes.POINTER(CProjection)),
    ]


class CNorm(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    ]


class CDeltaNet(ctypes.Structure):
    _fields_ = [
        ("num_key_heads", ctypes.c_int32),
        ("num_value_heads", ctypes.c_int32),
        ("key_head_dim", ctypes.c_int32),
        ("value_head_dim", ctypes.c_int32),
        ("conv_kernel", ctypes.c_int32),
        ("are_value_heads_tiled", ctypes.c_int32),
        ("conv_weight", ctypes.c_void_p),
        ("decay_rate", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
    ]


class CShortConv(ctypes.Structure):
    _fields_ = [
        ("channels", ctypes.c_int32),
        ("kernel", ctypes.c_int32),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    ]


class CMamba(ctypes.Structure):
    _fields_ = [
        ("num_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("num_groups", ctypes.c_int32),
        ("state_size", ctypes.c_int32),
        ("conv_kernel", ctypes.c_int32),
        ("conv_weight", ctypes.c_void_p),
        ("conv_bias", ctypes.c_void_p),
        ("decay_rate", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("skip", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
    ]


class CLatent(ctypes.Structure):
    _fields_ = [
        ("kv_rank", ctypes.c_int32),
        ("rotary_dim", ctypes.c_int32),
        ("plain_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("query_rank", ctypes.c_int32),
        ("query_norm", ctypes.c_void_p),
        ("latent_norm", ctypes.c_void_p),
        ("queries", CProjection),
        ("to_keys", CLinear),
        ("to_values", CLinear),
    ]


class CLayer(ctypes.Structure):
    _fields_ = [
        ("qkv", CProjection),
        ("output", CProjection),
        ("gate_up", CProjection),
        ("down", CProjection),
        ("input_norm", CNorm),
        ("mixed_norm", CNorm),
        ("mlp_norm", CNorm),
        ("mlp_added_norm", CNorm),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("experts", ctypes.POINTER(CExperts)),
        ("delta", ctypes.POINTER(CDeltaNet)),
        ("conv", ctypes.POINTER(CShortConv)),
        ("mamba", ctypes.POINTER(CMamba)),
        ("latent", ctypes.POINTER(CLatent)),
        ("rotary_dim", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("is_chunked", ctypes.c_int32),
        ("grows_queries", ctypes.c_int32),
        ("cache_index", ctypes.c_int32),
    ]


class CJoin(ctypes.Structure):
    _fields_ = [
        ("embedding", CNorm),
        ("hidden", CNorm),
        ("product", CLinear),
    ]


class CModel(ctypes.Structure):
    _fields_ = [
        ("hidden_size", ctypes.c_int32),
        ("intermediate_size", ctypes.c_int32),
        ("num_layers", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("kv_format", ctypes.c_int32),
        ("norm_kind", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("is_gated", ctypes.c_int32),
        ("is_parallel", ctypes.c_int32),
        ("is_qk_norm_wide", ctypes.c_int32),
        ("is_qk_norm_after_rotation", ctypes.c_int32),
        ("is_rope_interleaved", ctypes.c_int32),
        ("has_output_gate", ctypes.c_int32),
        ("norm_eps", ctypes.c_float),
        ("query_scale", ctypes.c_float),
        ("score_cap", ctypes.c_float),
        ("logit_cap", ctypes.c_float),
        ("embedding_multiplier", ctypes.c_float),
        ("residual_multiplier", ctypes.c_float),
        ("logit_multiplier", ctypes.c_float),
        ("query_growth", ctypes.c_void_p),
        ("layers", ctypes.POINTER(CLayer)),
        ("final_norm", CNorm),
        ("embedding", CLinear),
        ("head", CLinear),
        ("join", ctypes.POINTER(CJoin)),
    ]


class CImages(ctypes.Structure):
    _fields_ = [
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("pictured", ctypes.c_void_p),
        ("embeddings", ctypes.c_void_p),
        ("deepstack", ctypes.c_void_p),
        ("num_pictured", ctypes.c_int32),
        ("num_deepstack", ctypes.c_int32),
    ]


class CBatch(ctypes.Structure):
    _fields_ = [
        ("num_rows", ctypes.c_int32),
        ("num_sequences", ctypes.c_int32),
        ("num_logit_rows", ctypes.c_int32),
        ("table_stride", ctypes.c_int32),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("logit_rows", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("num_blocks", ctypes.c_int64),
        ("state_reads", ctypes.c_void_p),
        ("state_writes", ctypes.c_void_p),
        ("conv_states", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("num_state_slots", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
        ("adapters", ctypes.c_void_p),
        ("inner_width", ctypes.c_int32),
        ("images", ctypes.POINTER(CImages)),
        ("hidden_rows", ctypes.c_void_p),
        ("hidden_out", ctypes.c_void_p),
        ("skips_layers", ctypes.c_int32),
        ("last_seen", ctypes.c_void_p),
        ("sequences", ctypes.c_void_p),
    ]


class Draw(ctypes.Structure):
    """``Draw`` of draw.h: a row of scores, and how its token is drawn. ``top_k`` 0: of all."""

    _fields_ = [
        ("row", ctypes.c_int64),
        ("top_k", ctypes.c_int32),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("uniform", ctypes.c_float),
    ]


Projection = Sequence[PackedLinear]
"""Up to ``MAX_PARTS`` weights that one input meets, in different formats: their outputs lie one
after the other."""


def projection_struct(parts: Projection) -> CProjection:
    assert len({part.in_features for part in parts}) <= 1
    return CProjection(num_parts=len(parts), parts=tuple(linear_struct(part) for part in parts))


def linear_struct(packed: PackedLinear | None) -> CLinear:
    if packed is None:
        return CLinear()
    assert packed.in_features % _features_multiple(packed.format) == 0
    return CLinear(
        format=packed.format,
        in_features=packed.in_features,
        out_features=packed.out_features,
        panels=packed.panels.data_ptr(),
        bias=pointer(packed.bias, torch.float32),
        values=() if packed.codebook is None else packed.codebook.values,
        unit=0.0 if packed.codebook is None else packed.codebook.unit,
    )


def _features_multiple(format: Format) -> int:
    """The C side reads whole groups, or whole super-blocks."""
    if format is Format.F32:
        return 1
    is_super = format in (*SUPER_BLOCK_FORMATS.values(), Format.T3K, Format.T4K)
    return SUPER_BLOCK_FEATURES if is_super else GROUP_FEATURES


def pointer(tensor: torch.Tensor | None, dtype: torch.dtype) -> int | None:
    """The C side indexes blindly, so the dtype and the layout are checked here."""
    if tensor is None:
        return None
    assert tensor.dtype == dtype and tensor.is_contiguous() and tensor.device.type == "cpu"
    return tensor.data_ptr()


def address(array: Ints | None, *, has_contiguous_rows: bool = False) -> int | None:
    """Returns the address of a step's array, checked as in ``pointer``. ``has_contiguous_rows``:
    contiguous rows are enough, as the C side gets the stride from one to the next."""
    if array is None:
        return None
    dense = array[0] if has_contiguous_rows else array
    assert array.dtype == np.int32 and dense.flags.c_contiguous
    found: int = array.__array_interface__["data"][0]
    return found
