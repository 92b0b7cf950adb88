"""Weights whose codes are places in a small table of values: IQ types, ternary ones, NVFP4.

w = scale * unit * values[code]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

HALF_GROUP_FEATURES = 16
"""Features of one scale in formats with two scales for a group."""


@dataclass(frozen=True, slots=True)
class Codebook:
    """``values``: 4, 8 or 16 whole numbers in -127..127; ``unit``: what they are multiplied with, a
    power of two unless the file has a scale of the whole weight."""

    values: tuple[int, ...]
    unit: float = 1.0

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return (len(self.values) - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodebookWeight:
    """``codes`` uint8 (out_features, in_features). Either ``scales`` float16 (out_features,
    in_features / group) and no ``super_scales``, or ``scales`` int8 and ``super_scales`` float16
    (out_features, in_features / 256), whose product is the scale. A group is of 32 or 16."""

    codebook: Codebook
    codes: torch.Tensor
    scales: torch.Tensor
    super_scales: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def bits(self) -> int:
        return self.codebook.bits

    @property
    def minimums(self) -> None:
        """No such format has any."""
        return None

    @property
    def group_features(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def packed_bytes(self) -> int:
        """The bytes with codes in their bits and scales as they are; without the bias."""
        supers = 0 if self.super_scales is None else self.super_scales.nbytes
        return self.codes.numel() * self.bits // 8 + self.scales.nbytes + supers

    def group_scales(self) -> torch.Tensor:
        """Returns the scales of the groups, the unit included; float32 (out_features, groups)."""
        scales = self.scales.float()
        if self.super_scales is not None:
            by_block = scales.view(*self.super_scales.shape, -1)
            scales = (self.super_scales.float().unsqueeze(-1) * by_block).view(self.scales.shape)
        return scales * self.codebook.unit

    def table(self) -> torch.Tensor:
        """The values, float32, on the codes' device."""
        return torch.tensor(self.codebook.values, dtype=torch.float32, device=self.codes.device)

    def dequantize(self) -> torch.Tensor:
        """float32 (out_features, in_features)."""
        scales = self.group_scales()
        numbers = self.table()[self.codes.int()].view(*scales.shape, -1)
        return (numbers * scales.unsqueeze(-1)).view(self.shape)
