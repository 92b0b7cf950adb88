"""Quantised weights that stay packed on the card, whatever their format: codes in 4, 6 or 8 bits,
scales and minimums as their file holds them.

    2, 3 and 4 bits    two codes to a byte
    5 and 6 bits       the same, and the upper two bits four to a byte
    8 bits             a signed byte each
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from inference.models.cuda.matmul_kernels import packed_matmul_kernel
from inference.models.stored import SUPER_BLOCK_FEATURES, PackedWeight, SuperBlockWeight


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    outputs: int
    features: int
    warps: int


DECODE_TILE = Tile(rows=16, outputs=16, features=256, warps=4)
"""Few outputs, so that a narrow projection still occupies the card."""
PREFILL_TILE = Tile(rows=64, outputs=64, features=64, warps=4)


class PackedLinear:
    """A projection over a ``PackedWeight``; ``bias`` is in the activations' dtype."""

    def __init__(self, weight: PackedWeight, device: torch.device, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self._zero = weight.zero if isinstance(weight, SuperBlockWeight) else 0
        codes = weight.codes
        if weight.bits < 8 and codes.dtype == torch.int8:  # signed codes of 5 bits
            self._zero = 2 ** (weight.bits - 1)
            codes = (codes + self._zero).to(torch.uint8)
        self._bits = 8 if weight.bits == 8 else 6 if weight.bits > 4 else 4
        codes = codes.to(device)
        self._codes = codes if self._bits == 8 else pack_low(codes)
        self._high_codes = pack_high(codes) if self._bits == 6 else None
        self._scales = weight.scales.to(device)
        self._minimums = None if weight.minimums is None else weight.minimums.to(device)
        self._group_features = self.in_features // weight.scales.shape[1]
        self._super_scales: torch.Tensor | None = None
        self._super_minimums: torch.Tensor | None = None
        if isinstance(weight, SuperBlockWeight):
            self._super_scales = weight.super_scales.to(device)
            if weight.super_minimums is not None:
                self._super_minimums = weight.super_minimums.to(device)
        self.bias = None if weight.bias is None else weight.bias.to(device, dtype)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, DECODE_TILE)

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, PREFILL_TILE)

    def _multiply(self, x: torch.Tensor, tile: Tile) -> torch.Tensor:
        product = x.new_empty(len(x), self.out_features)
        grid = triton.cdiv(self.out_features, tile.outputs), triton.cdiv(len(x), tile.rows)
        packed_matmul_kernel[grid](
            x.contiguous(),
            self._codes,
            self._high_codes,
            self._scales,
            self._super_scales,
            self._minimums,
            self._super_minimums,
            product,
            len(x),
            in_features=self.in_features,
            out_features=self.out_features,
            bits=self._bits,
            zero=self._zero,
            group_features=self._group_features,
            super_features=0 if self._super_scales is None else SUPER_BLOCK_FEATURES,
            has_minimums=self._minimums is not None,
            tile_rows=tile.rows,
            tile_outputs=tile.outputs,
            tile_features=tile.features,
            # Triton's interpreter cannot multiply bfloat16.
            is_exact=x.dtype == torch.float32 or x.device.type == "cpu",
            num_warps=tile.warps,
        )
        return product if self.bias is None else product + self.bias


def pack_low(codes: torch.Tensor) -> torch.Tensor:
    """(out, in) uint8 -> (out, in / 2): the lower four bits, a pair's first code lowest."""
    low = codes & 15
    return low[:, ::2] | low[:, 1::2] << 4


def pack_high(codes: torch.Tensor) -> torch.Tensor:
    """(out, in) uint8 -> (out, in / 4): bits 4 and 5, four codes to a byte, the first lowest."""
    high = codes >> 4
    return high[:, ::4] | high[:, 1::4] << 2 | high[:, 2::4] << 4 | high[:, 3::4] << 6
