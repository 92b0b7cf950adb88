"""Projections over weights that stay packed as ``packed_layout`` has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch.nn.functional import linear

from inference.models.cuda.matmul_kernels import packed_matmul_kernel, unpack_kernel
from inference.models.cuda.packed_batch import (
    BatchTile,
    batch_product,
    batch_tile,
    has_batch_kernel,
    is_copy_faster,
)
from inference.models.cuda.packed_layout import pack
from inference.models.cuda.trials import processor_count
from inference.models.stored_weights import PackedWeight


@dataclass(frozen=True, slots=True)
class Tile:
    outputs: int
    """Few occupy the card with a narrow projection, but read the activations often."""
    stages: int
    """The stages of the pipeline that fetches words and activations: as many as fit in 99 KiB."""


TILES = {8: Tile(16, 4), 16: Tile(32, 2), 32: Tile(32, 2)}
UNPACKED_OUTPUTS = 16


class PackedLinear:
    """``bias`` is in the activations' dtype."""

    is_phaseless = False

    def __init__(
        self,
        weight: PackedWeight,
        device: torch.device,
        dtype: torch.dtype,
        *,
        prefill_copy: bool = False,
    ) -> None:
        """``prefill_copy``: keep the dense weight, for prompts and steps that it makes faster."""
        self.out_features, self.in_features = weight.shape
        self.packed = pack(weight, device)
        self._num_processors = processor_count(device)
        self._has_batch_kernel = has_batch_kernel(device)
        self.bias = None if weight.bias is None else weight.bias.to(device, dtype)
        self._copy = self.unpacked(dtype) if prefill_copy else None

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        bits = self.packed.layout["bits"]
        num_weights = self.out_features * self.in_features
        if self._copy is not None and is_copy_faster(bits, len(x), num_weights):
            return linear(x, self._copy, self.bias)
        tile = batch_tile(bits, len(x)) if self._has_batch_kernel else None
        product = self.row_product(x) if tile is None else self.batch_product(x, tile)
        return product if self.bias is None else product + self.bias

    def batch_product(self, x: torch.Tensor, tile: BatchTile) -> torch.Tensor:
        """(rows, out_features), without the bias."""
        return batch_product(self.packed, x, self.out_features, tile, self._num_processors)

    def row_product(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, out_features), without the bias, by the kernel for few rows."""
        packed, product = self.packed, x.new_empty(len(x), self.out_features)
        tile_rows = next((rows for rows in TILES if rows >= len(x)), max(TILES))
        tile = TILES[tile_rows]
        grid = triton.cdiv(self.out_features, tile.outputs), triton.cdiv(len(x), tile_rows)
        packed_matmul_kernel[grid](
            x.contiguous(),
            packed.words,
            packed.high_words,
            packed.scales,
            packed.row_scales,
            packed.table,
            product,
            len(x),
            self.out_features,
            **packed.layout,
            parts=packed.parts,
            tile_outputs=tile.outputs,
            tile_rows=tile_rows,
            stages=tile.stages,
            # Triton's interpreter cannot multiply bfloat16.
            is_exact=x.dtype == torch.float32 or x.device.type == "cpu",
            num_warps=packed.parts,
        )
        return product

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        """Writing the weight out takes some 5 % of multiplying 4,096 rows by it (decision 21)."""
        weight = self.unpacked(x.dtype) if self._copy is None else self._copy
        return linear(x, weight, self.bias)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """(out_features, in_features)."""
        packed = self.packed
        weight = packed.words.new_empty((self.out_features, self.in_features), dtype=dtype)
        num_tiles = packed.words.shape[1] // packed.tile_words
        grid = triton.cdiv(self.out_features, UNPACKED_OUTPUTS), num_tiles
        unpack_kernel[grid](
            packed.words,
            packed.high_words,
            packed.scales,
            packed.row_scales,
            packed.table,
            weight,
            self.out_features,
            **packed.layout,
            tile_outputs=UNPACKED_OUTPUTS,
        )
        return weight
