"""Matrices as quantised safetensors hold them, taken apart: their codes stay. Knows no files.

    AWQ      qweight (in, out / 8)         scales (groups, out)         qzeros (groups, out / 8)
    GPTQ     qweight (in / 8, out)         the same; with 8 bits, four a word
    packed   weight_packed (out, in / 8)   weight_scale (out, groups)   weight_zero_point
                                                                        (out / 8, groups)

Words are int32, the lowest bits first. Groups are of input features, any multiple of 32 of them: of
ours, several then share their numbers. What fits no group of ours becomes dense, in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.stored_weights import GROUP_FEATURES, DenseWeight, GroupedWeight, StoredWeight

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word AWQ has each of eight neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """w = scale * (code - zero), codes and zeros from 0 on."""

    bits: int
    codes: torch.Tensor
    """uint8 (out_features, in_features)."""
    scales: torch.Tensor
    """(out_features, groups)."""
    zeros: torch.Tensor | None
    """uint8 (out_features, groups); ``None``: the middle code."""


def spread(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 (rows, words) -> uint8 (rows, codes)."""
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Codes:
    return Codes(bits=4, codes=_awq(qweight), scales=scales.T, zeros=_awq(qzeros))


def _awq(words: torch.Tensor) -> torch.Tensor:
    """(rows, words) -> (codes, rows)."""
    codes = spread(words, 4).view(words.shape[0], -1, len(AWQ_ORDER))
    return codes[:, :, list(AWQ_ORDER)].flatten(1).T


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor | None,
    scales: torch.Tensor,
    bits: int,
    *,
    zeros_less_one: bool,
) -> Codes:
    zeros = None if qzeros is None else spread(qzeros, bits).T
    if zeros is not None and zeros_less_one:
        zeros = (zeros + 1) & (2**bits - 1)
    return Codes(bits=bits, codes=spread(qweight.T, bits), scales=scales.T, zeros=zeros)


def from_packed(
    packed: torch.Tensor,
    zero_points: torch.Tensor | None,
    scales: torch.Tensor,
    shape: tuple[int, ...],
) -> Codes:
    """compressed-tensors: the bits follow from ``shape``, (out_features, in_features)."""
    bits = 32 * packed.shape[1] // shape[1]
    zeros = None if zero_points is None else spread(zero_points.T, bits).T[: shape[0]]
    codes = spread(packed, bits)[:, : shape[1]]
    return Codes(bits=bits, codes=codes, scales=scales.view(shape[0], -1), zeros=zeros)


def stored(matrix: Codes, feature_groups: torch.Tensor | None = None) -> StoredWeight:
    """``feature_groups`` (in_features,): each input's group, where they are not in order."""
    if feature_groups is not None or not _fits(matrix):
        return DenseWeight(weight=_dense(matrix, feature_groups).to(torch.bfloat16))
    num_features = matrix.codes.shape[1]
    times = num_features // matrix.scales.shape[1] // GROUP_FEATURES
    scales = matrix.scales
    if scales.dtype != torch.float16:
        scales = scales.float()
    codes, minimums = matrix.codes, None
    if matrix.bits == 8:
        codes = (codes.short() - 128).to(torch.int8)
    else:
        minimums = -(scales.float() * _zeros(matrix).float()).to(scales.dtype)
    return GroupedWeight(
        bits=matrix.bits,
        codes=codes.contiguous(),
        scales=scales.repeat_interleave(times, dim=1),
        minimums=None if minimums is None else minimums.repeat_interleave(times, dim=1),
    )


def _fits(matrix: Codes) -> bool:
    """A ``GroupedWeight`` of 8 bits has no minimums."""
    num_features, num_groups = matrix.codes.shape[1], matrix.scales.shape[1]
    is_centred = matrix.bits == 4 or bool((_zeros(matrix) == 128).all())
    return num_features % (num_groups * GROUP_FEATURES) == 0 and is_centred


def _zeros(matrix: Codes) -> torch.Tensor:
    middle = 2 ** (matrix.bits - 1)
    return torch.full((1, 1), middle) if matrix.zeros is None else matrix.zeros


def _dense(matrix: Codes, feature_groups: torch.Tensor | None) -> torch.Tensor:
    num_features, num_groups = matrix.codes.shape[1], matrix.scales.shape[1]
    if feature_groups is None:
        feature_groups = torch.arange(num_features) * num_groups // num_features
    groups = feature_groups.long()
    zeros = _zeros(matrix).float().expand(-1, num_groups)
    return (matrix.codes.float() - zeros[:, groups]) * matrix.scales.float()[:, groups]


def scaled(weight: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """``weight`` (rows, columns) of fp8; one scale for all, a row, or a block. Returns bfloat16."""
    scales = scales.float()
    if scales.dim() < 2:
        scales = scales.reshape(-1, 1)
    for dim in (0, 1):
        scales = _spread_over(scales, dim, weight.shape[dim], block[dim])
    return (weight.float() * scales).to(torch.bfloat16)


def _spread_over(scales: torch.Tensor, dim: int, size: int, block_size: int) -> torch.Tensor:
    """The last block may be a part of one."""
    count = scales.shape[dim]
    if count in (1, size):
        return scales
    if count != -(-size // block_size):
        block_size = size // count
    return scales.repeat_interleave(block_size, dim=dim).narrow(dim, 0, size)


def eight_bit(weight: torch.Tensor, scales: torch.Tensor) -> StoredWeight:
    """``weight`` int8 (rows, columns), centred; one scale for all, a row, or a group."""
    scales = scales.float().reshape(-1, scales.shape[-1] if scales.dim() == 2 else 1)
    scales = scales.expand(weight.shape[0], -1)
    codes = (weight.short() + 128).to(torch.uint8)
    return stored(Codes(bits=8, codes=codes, scales=scales, zeros=None))
