"""Weights as their files hold them: dense, or quantised in groups of 32 input features.

What a kernel wants (int4pack, native panels) is made from these; they know no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP_FEATURES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWeight:
    """``weight`` (out_features, in_features), any float dtype; ``bias`` (out_features,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWeight:
    """w = scale * code + minimum, one scale and minimum per row and group of 32.

    4 bits: ``codes`` uint8 in 0..15 and ``minimums`` given. 8 bits: ``codes`` int8 and ``minimums``
    ``None`` (zero). ``codes`` (out_features, in_features); ``scales`` and ``minimums``
    (out_features, in_features / 32) float16 or float32.
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantize(self) -> torch.Tensor:
        """float32 (out_features, in_features)."""
        out_features, in_features = self.shape
        grouped = self.codes.view(out_features, -1, GROUP_FEATURES).float()
        weight = grouped * self.scales.float().unsqueeze(-1)
        if self.minimums is not None:
            weight = weight + self.minimums.float().unsqueeze(-1)
        return weight.view(out_features, in_features)


StoredWeight = DenseWeight | GroupedWeight
