"""The structs of model.h, linear.h and draw.h, field by field, and what fills them.

They point at tensors, and keep none alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inference.models.native.packing import SUPER_BLOCK_FORMATS, Format, PackedLinear
from inference.models.step_input import Ints
from inference.models.weights.stored import GROUP_FEATURES, SUPER_BLOCK_FEATURES

MAX_PARTS = 4
"""``kMaxParts`` of linear.h."""

INT, FLOAT, POINTER = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p


def fields(kind: type, names: str) -> list[tuple[str, Any]]:
    """Neighbours of one type, by their names."""
    return [(name, kind) for name in names.split()]


class CLinear(ctypes.Structure):
    _fields_ = [
        *fields(INT, "format in_features out_features"),
        *fields(POINTER, "panels bias"),
        ("values", ctypes.c_int8 * 16),
        ("unit", FLOAT),
    ]


class CProjection(ctypes.Structure):
    _fields_ = [
        ("num_parts", INT),
        ("parts", CLinear * MAX_PARTS),
    ]


class CExperts(ctypes.Structure):
    _fields_ = [
        *fields(INT, "num_experts per_token intermediate_size scoring normalizes has_shared"),
        *fields(INT, "weighs_inputs num_groups groups_per_token group_experts"),
        ("weight_scale", FLOAT),
        ("choice_bias", POINTER),
        ("router", CLinear),
        *fields(ctypes.POINTER(CProjection), "gate_up down"),
    ]


class CNorm(ctypes.Structure):
    _fields_ = fields(POINTER, "weight bias")


class CDeltaNet(ctypes.Structure):
    _fields_ = [
        *fields(INT, "num_key_heads num_value_heads key_head_dim value_head_dim conv_kernel"),
        *fields(INT, "are_value_heads_tiled"),
        *fields(POINTER, "conv_weight decay_rate dt_bias norm"),
    ]


class CShortConv(ctypes.Structure):
    _fields_ = [
        *fields(INT, "channels kernel"),
        *fields(POINTER, "weight bias"),
    ]


class CMamba(ctypes.Structure):
    _fields_ = [
        *fields(INT, "num_heads head_dim num_groups state_size conv_kernel"),
        *fields(POINTER, "conv_weight conv_bias decay_rate dt_bias skip norm"),
    ]


class CLatent(ctypes.Structure):
    _fields_ = [
        *fields(INT, "kv_rank rotary_dim plain_dim value_dim query_rank"),
        *fields(POINTER, "query_norm latent_norm"),
        ("queries", CProjection),
        *fields(CLinear, "to_keys to_values"),
    ]


class CLayer(ctypes.Structure):
    _fields_ = [
        *fields(CProjection, "qkv output gate_up down"),
        *fields(CNorm, "input_norm mixed_norm mlp_norm mlp_added_norm"),
        *fields(POINTER, "query_norm key_norm cosines sines"),
        ("experts", ctypes.POINTER(CExperts)),
        ("delta", ctypes.POINTER(CDeltaNet)),
        ("conv", ctypes.POINTER(CShortConv)),
        ("mamba", ctypes.POINTER(CMamba)),
        ("latent", ctypes.POINTER(CLatent)),
        *fields(INT, "rotary_dim window is_chunked grows_queries cache_index"),
    ]


class CJoin(ctypes.Structure):
    _fields_ = [
        *fields(CNorm, "embedding hidden"),
        ("product", CLinear),
    ]


class CModel(ctypes.Structure):
    _fields_ = [
        *fields(INT, "hidden_size intermediate_size num_layers num_heads num_kv_heads head_dim"),
        *fields(INT, "kv_format norm_kind activation is_gated is_parallel is_qk_norm_wide"),
        *fields(INT, "is_qk_norm_after_rotation is_rope_interleaved has_output_gate"),
        *fields(FLOAT, "norm_eps query_scale score_cap logit_cap embedding_multiplier"),
        *fields(FLOAT, "residual_multiplier logit_multiplier"),
        ("query_growth", POINTER),
        ("layers", ctypes.POINTER(CLayer)),
        ("final_norm", CNorm),
        *fields(CLinear, "embedding head"),
        ("join", ctypes.POINTER(CJoin)),
    ]


class CImages(ctypes.Structure):
    _fields_ = [
        *fields(POINTER, "cosines sines image_rows embeddings deepstack"),
        *fields(INT, "num_image_rows num_deepstack"),
    ]


class CBatch(ctypes.Structure):
    _fields_ = [
        *fields(INT, "num_rows num_sequences num_logit_rows table_stride"),
        *fields(POINTER, "token_ids positions query_start block_table logit_rows keys values"),
        ("num_blocks", ctypes.c_int64),
        *fields(POINTER, "state_reads state_writes conv_states states"),
        ("num_state_slots", ctypes.c_int64),
        *fields(POINTER, "logits adapters"),
        ("inner_width", INT),
        ("images", ctypes.POINTER(CImages)),
        *fields(POINTER, "hidden_rows hidden_out"),
        ("skips_layers", INT),
        *fields(POINTER, "last_seen sequences"),
    ]


class Draw(ctypes.Structure):
    """``Draw`` of draw.h: a row of scores, and how its token is drawn. ``top_k`` 0: of all."""

    _fields_ = [
        ("row", ctypes.c_int64),
        ("top_k", INT),
        *fields(FLOAT, "temperature top_p min_p uniform"),
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
