"""The torch kernels behind quantised projections: plain tensors in and out, so that torch.compile
can trace one decoder layer and feed it every layer's weights.

One group-wise 4-bit kernel serves 4- and 8-bit weights. An 8-bit code is two 4-bit digits, and the
activations meet both in a row twice as long, accumulated in one float32 sum:

    q = 16 h + l     x . q  =  [x | x] . [16 h | l]      h = q // 16 in -8..7,  l in 0..15
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from inference.models.kv_format import FP8_CAPABILITY
from inference.models.stored_weights import (
    GROUP_FEATURES,
    CodebookWeight,
    GroupedWeight,
    PackedWeight,
    SuperBlockWeight,
)

INT4_ZERO_CODE = 8
"""The kernels compute scale * (code - 8) + zero."""

FP8 = torch.float8_e4m3fn
LARGEST_FP8 = torch.finfo(FP8).max
FP8_FEATURES_MULTIPLE = 16

CPU_OUT_FEATURES_MULTIPLE = 16
CUDA_OUT_FEATURES_MULTIPLE = 8
CUDA_INNER_K_TILES = 2
CUDA_IN_FEATURES_MULTIPLE = CUDA_INNER_K_TILES * 16


def int4_matmul(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor
) -> torch.Tensor:
    """(rows, in) -> (rows, out) in x's dtype; reads bfloat16, sums in float32."""
    narrow = x.to(torch.bfloat16)
    if packed.device.type == "cuda":
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm(
            narrow, packed, GROUP_FEATURES, scales_and_zeros
        )
    else:
        product = torch.ops.aten._weight_int4pack_mm_for_cpu(
            narrow, packed, GROUP_FEATURES, scales_and_zeros
        )
    return product.to(x.dtype)


def int8_matmul(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor
) -> torch.Tensor:
    """``int4_matmul`` for 8-bit weights, packed as two digits by ``pack_int4``."""
    narrow = x.to(torch.bfloat16)
    return int4_matmul(torch.cat([narrow, narrow], dim=-1), packed, scales_and_zeros).to(x.dtype)


def dense_matmul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiplies in the weight's dtype; returns x's."""
    return linear(x.to(weight.dtype), weight, bias).to(x.dtype)


def fp8_matmul(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(rows, in) -> (rows, out) in x's dtype. ``codes`` and ``scales`` are ``fp8_rows``'."""
    x_codes, x_scales = fp8_rows(x)
    product: torch.Tensor = torch._scaled_mm(
        x_codes, codes.t(), scale_a=x_scales, scale_b=scales.t(), out_dtype=torch.bfloat16
    )
    return product.to(x.dtype)


def fp8_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, features) -> float8_e4m3fn codes, and float32 (rows, 1) scales: w = scale * code."""
    values = matrix.float()
    largest = values.abs().amax(dim=1, keepdim=True)
    scales = torch.where(largest > 0, largest / LARGEST_FP8, 1.0)
    return (values / scales).to(FP8), scales


def fp8_reason(shape: tuple[int, int]) -> str | None:
    """``shape``: (out_features, in_features)."""
    if shape[0] % FP8_FEATURES_MULTIPLE or shape[1] % FP8_FEATURES_MULTIPLE:
        return f"{shape[0]} x {shape[1]} is not a multiple of {FP8_FEATURES_MULTIPLE}"
    return None


def has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


def as_grouped(stored: PackedWeight) -> GroupedWeight | None:
    """``None``: it has neither 4 bits with minimums nor up to 8 without."""
    if isinstance(stored, SuperBlockWeight):
        return stored.grouped() if stored.bits == 4 else None
    if isinstance(stored, CodebookWeight):
        return None
    return stored if stored.bits == 4 or stored.minimums is None else None


def kernel_bits(weight: GroupedWeight) -> int:
    """4: ``int4_matmul``; 8: ``int8_matmul``, whose two digits hold 5-bit codes as well."""
    return 4 if weight.bits == 4 else 8


def int4_kernel_reason(weight: GroupedWeight, device: torch.device) -> str | None:
    out_features, in_features = weight.shape
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "the 4-bit CUDA kernel needs compute capability 8.0"
        multiple = CUDA_OUT_FEATURES_MULTIPLE
        in_multiple = CUDA_IN_FEATURES_MULTIPLE
    elif device.type == "cpu":
        if not torch.cpu._is_avx2_supported():
            return "the 4-bit CPU kernel needs AVX2"
        multiple, in_multiple = CPU_OUT_FEATURES_MULTIPLE, GROUP_FEATURES
    else:
        return f"there is no 4-bit kernel for {device.type}"
    if out_features % multiple or in_features % in_multiple:
        return f"{out_features} x {in_features} is not a multiple of {multiple} x {in_multiple}"
    return None


def has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def pack_int4(weight: GroupedWeight, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes in the device kernel's own order, and bfloat16 (in / 32, out, 2) of scale and zero."""
    codes, scales, zeros = _digits(weight) if kernel_bits(weight) == 8 else _offset(weight)
    scales_and_zeros = torch.stack([scales, zeros], dim=-1).transpose(0, 1).contiguous()
    return _pack_codes(codes.to(device)), scales_and_zeros.to(device, torch.bfloat16)


def _offset(weight: GroupedWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert weight.minimums is not None
    scales = weight.scales.float()
    return weight.codes, scales, weight.minimums.float() + INT4_ZERO_CODE * scales


def _digits(weight: GroupedWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, in) codes -> (out, 2 in): high digits, offset to be unsigned, then low digits."""
    assert weight.minimums is None
    scales = weight.scales.float()
    high = (weight.codes >> 4) + INT4_ZERO_CODE
    codes = torch.cat([high, weight.codes & 0x0F], dim=1).to(torch.uint8)
    zeros = torch.cat([torch.zeros_like(scales), INT4_ZERO_CODE * scales], dim=1)
    return codes, torch.cat([16 * scales, scales], dim=1), zeros


def _pack_codes(codes: torch.Tensor) -> Any:
    if codes.device.type == "cuda":
        pairs = codes[:, ::2] << 4 | codes[:, 1::2]
        return torch.ops.aten._convert_weight_to_int4pack(pairs, CUDA_INNER_K_TILES)
    inner_k_tiles = 1  # unused on the CPU
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), inner_k_tiles)
