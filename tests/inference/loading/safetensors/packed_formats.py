"""Matrices in the formats of quantised safetensors, beside the values that each format defines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

GROUP = 32
Tensors = dict[str, torch.Tensor]
AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours each nibble of a word holds, the lowest first."""


def words_of(codes: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """(rows, codes) -> (rows, words) int32, one shift at a time."""
    per_word = 32 // bits
    words = torch.zeros(codes.shape[0], codes.shape[1] // per_word, dtype=torch.int64)
    for place, index in enumerate(order or range(per_word)):
        words |= codes[:, index::per_word].long() << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def random_codes(bits: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2**bits, shape)


def random_scales(*shape: int) -> torch.Tensor:
    return (torch.rand(shape) + 0.5).mul(0.05).to(torch.float16)


def multiplied(codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(out, in), and (out, groups) of both others."""
    times = codes.shape[1] // scales.shape[1]
    zeros, scales = (n.float().repeat_interleave(times, dim=1) for n in (zeros, scales))
    return (codes.float() - zeros) * scales


def awq(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    codes, zeros = random_codes(4, rows, columns), random_codes(4, rows, columns // GROUP)
    scales = random_scales(rows, columns // GROUP)
    tensors = {
        "qweight": words_of(codes.T, 4, AWQ_NIBBLES),
        "qzeros": words_of(zeros.T, 4, AWQ_NIBBLES),
        "scales": scales.T.contiguous(),
    }
    return tensors, multiplied(codes, zeros, scales)


def gptq(bits: int, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    """8 bits with zeros in the middle, 4 bits with zeros anywhere but at 0."""
    codes, shape = random_codes(bits, rows, columns), (rows, columns // GROUP)
    zeros = torch.full(shape, 128) if bits == 8 else random_codes(4, *shape).clamp(min=1)
    scales = random_scales(*shape)
    tensors = {
        "qweight": words_of(codes, bits).T.contiguous(),
        "qzeros": words_of((zeros - 1).T, bits),
        "scales": scales.T.contiguous(),
        "g_idx": (torch.arange(columns) // GROUP).to(torch.int32),
    }
    return tensors, multiplied(codes, zeros, scales)


def gptq_by_activation(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    """Groups of features that do not follow each other."""
    tensors, weight = gptq(4, rows, columns)
    order = torch.randperm(columns)
    codes = random_codes(4, rows, columns)
    tensors["g_idx"] = tensors["g_idx"][order]
    tensors["qweight"] = words_of(codes, 4).T.contiguous()
    zeros = (tensors["qzeros"].view(torch.uint8).int(), tensors["scales"].T.float())
    nibbles = torch.stack((zeros[0] & 15, zeros[0] >> 4), dim=-1).flatten(1).T + 1
    groups = tensors["g_idx"].long()
    weight = (codes.float() - nibbles[:, groups]) * zeros[1][:, groups]
    return tensors, weight.bfloat16().float()


def compressed(rows: int, columns: int, *, has_zeros: bool) -> tuple[Tensors, torch.Tensor]:
    codes, shape = random_codes(4, rows, columns), (rows, columns // GROUP)
    zeros = random_codes(4, *shape) if has_zeros else torch.full(shape, 8)
    scales = random_scales(*shape).bfloat16()
    tensors = {
        "weight_packed": words_of(codes, 4),
        "weight_scale": scales,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if has_zeros:
        tensors["weight_zero_point"] = words_of(zeros.T, 4).T.contiguous()
    return tensors, multiplied(codes, zeros, scales)


def int8_rows(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    codes, scales = torch.randint(-128, 128, (rows, columns)), random_scales(rows, 1) / 16
    return {"weight": codes.to(torch.int8), "weight_scale": scales}, codes * scales.float()


def fp8(block: tuple[int, int], rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    """The last blocks are parts of one."""
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // block[0]), -(-columns // block[1])) * 0.2 + 0.1
    spread = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)
    expected = (weight.float() * spread[:, :columns]).bfloat16().float()
    return {"weight": weight, "weight_scale_inv": scales}, expected


def fp8_rows(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    weight, scales = torch.randn(rows, columns).to(torch.float8_e4m3fn), random_scales(rows, 1) * 4
    return {"weight": weight, "weight_scale": scales}, (weight.float() * scales).bfloat16().float()


def fp8_static(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    """One scale for all, and one for activations, which stay as they are."""
    weight, scale = torch.randn(rows, columns).to(torch.float8_e4m3fn), torch.tensor(0.2)
    beside = {"weight_scale_inv": scale, "activation_scale": torch.tensor(0.01)}
    return {"weight": weight} | beside, (weight.float() * scale).bfloat16().float()


def groups_of(format: str, type: str, bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": type}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }


PACKED = groups_of("pack-quantized", "int", 4)
Make = Callable[[int, int], tuple[Tensors, torch.Tensor]]
CASES: dict[str, tuple[dict[str, Any], str, Make]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "INT4", awq),
    "gptq of 4 bits": ({"quant_method": "gptq", "bits": 4}, "INT4", partial(gptq, 4)),
    "gptq of 8 bits": ({"quant_method": "gptq", "bits": 8}, "INT8", partial(gptq, 8)),
    "gptq, ordered by activation": (
        {"quant_method": "gptq", "bits": 4, "desc_act": True},
        "BF16",
        gptq_by_activation,
    ),
    "packed": (PACKED, "INT4", partial(compressed, has_zeros=False)),
    "packed, with zeros": (PACKED, "INT4", partial(compressed, has_zeros=True)),
    "int8": (groups_of("int-quantized", "int", 8), "INT8", int8_rows),
    "fp8 of rows": (groups_of("float-quantized", "float", 8), "F8_E4M3", fp8_rows),
    "fp8 of blocks": (
        {"quant_method": "fp8", "weight_block_size": [40, 48]},
        "F8_E4M3",
        partial(fp8, (40, 48)),
    ),
    "fp8 of all": ({"quant_method": "fp8", "weight_block_size": None}, "F8_E4M3", fp8_static),
}
