"""Quantised weights that stay packed on the card, whatever their format: codes in 4, 6 or 8 bits.

Codes lie in words of 32 bits as the kernels want them, pairs of neighbours in a word's two halves;
a *plane* of a tile of words is what they have at one shift, a group of features:

    bits        31 .. 28  27 .. 24  23 .. 20  19 .. 16 | 15 .. 12  11 .. 8    7 .. 4    3 .. 0
    4 bits      plane 3   plane 2   plane 1   plane 0  | plane 3   plane 2   plane 1   plane 0
                          odd features                               even features
    8 bits          plane 1             plane 0        |     plane 1             plane 0
    5, 6 bits   as 4 bits, and the upper two of each code in words of their own, one for the two
                words that follow each other in a row's tiles: 2 bits for each of eight planes

2 and 3 bits are stored as 4. Scales and minimums are float16 in units of ``row_scales``, powers of
two that keep a row's largest near float16's: a word for a group's scale and minimum, or for the
scales of two groups where there are no minimums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.nn.functional import linear, pad

from inference.models.cuda.matmul_kernels import packed_matmul_kernel, unpack_kernel
from inference.models.weights.stored import PackedWeight, SuperBlockWeight

PARTS = (4, 2, 1)
"""Into how many a row's features may be cut, the best first: each is a warp's."""


@dataclass(frozen=True, slots=True)
class Tile:
    outputs: int
    """Few occupy the card with a narrow projection, but read the activations often."""
    stages: int
    """Of the pipeline that fetches words and activations: as many as fit in 99 KiB."""


TILES = {8: Tile(16, 4), 16: Tile(32, 2), 32: Tile(32, 2)}
"""By rows."""
LARGEST_EXPONENT = 7
"""Of a row's scales and minimums in its own units: they are below 2**7, and times any code float16
still holds them, as activations may be."""
UNPACKED_OUTPUTS = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight as the kernels take it."""

    words: torch.Tensor
    high_words: torch.Tensor | None
    scales: torch.Tensor | None
    row_scales: torch.Tensor | None
    layout: dict[str, Any]
    """The kernels' arguments that follow from the format and the width."""
    parts: int

    @property
    def tile_words(self) -> int:
        return int(self.layout["group_features"]) // 2


def pack(weight: PackedWeight, device: torch.device) -> Packed:
    codes, zero = unsigned_codes(weight, device)
    scales, minimums = group_scales(weight, device)
    return pack_codes(codes, zero, code_bits(weight), scales, minimums, is_float=False)


def code_bits(weight: PackedWeight) -> int:
    """What the kernels have for each code."""
    return 8 if weight.bits == 8 else 6 if weight.bits > 4 else 4


def pack_codes(
    codes: torch.Tensor,
    zero: int,
    bits: int,
    scales: torch.Tensor,
    minimums: torch.Tensor | None,
    *,
    is_float: bool,
) -> Packed:
    """``codes`` (out, in) uint8; ``scales`` and ``minimums`` (out, groups) float32. ``is_float``:
    whether codes are floats of their own, e2m1 of 4 bits or e4m3 of 8."""
    in_features = codes.shape[1]
    group_features = in_features // scales.shape[1]
    step = step_features(bits, group_features)
    parts = min(PARTS, key=lambda parts: padded(in_features, parts * step))
    padded_features = padded(in_features, parts * step)
    codes = pad(codes, (0, padded_features - in_features))
    high_words = pack_high_words(codes, group_features) if bits == 6 else None
    packed_scales, row_scales = pack_scales(scales, minimums, padded_features // group_features)
    layout = {
        "in_features": in_features,
        "padded_features": padded_features,
        "bits": bits,
        "zero": zero,
        "group_features": group_features,
        "has_minimums": minimums is not None,
        "is_float": is_float,
    }
    words = pack_words(codes, bits, group_features)
    return Packed(words, high_words, packed_scales, row_scales, layout, parts)


class PackedLinear:
    """A projection over a ``PackedWeight``; ``bias`` is in the activations' dtype."""

    is_phaseless = False

    def __init__(
        self,
        weight: PackedWeight,
        device: torch.device,
        dtype: torch.dtype,
        *,
        prefill_copy: bool = False,
    ) -> None:
        """``prefill_copy``: the weight written out is kept."""
        self.out_features, self.in_features = weight.shape
        self.packed = pack(weight, device)
        self.bias = None if weight.bias is None else weight.bias.to(device, dtype)
        self._prefill_weight = self.unpacked(dtype) if prefill_copy else None

    def decode(self, x: torch.Tensor) -> torch.Tensor:
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
        return product if self.bias is None else product + self.bias

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        """A prompt's rows are many: writing the weight out first takes some 5 % of the time in
        which 4,096 are multiplied by it (decision 21)."""
        weight = self.unpacked(x.dtype) if self._prefill_weight is None else self._prefill_weight
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
            weight,
            self.out_features,
            **packed.layout,
            tile_outputs=UNPACKED_OUTPUTS,
        )
        return weight


def unsigned_codes(weight: PackedWeight, device: torch.device) -> tuple[torch.Tensor, int]:
    """(out, in) uint8, and which of them stands for nothing."""
    codes = weight.codes.to(device)
    if isinstance(weight, SuperBlockWeight):
        return codes, weight.zero
    if codes.dtype == torch.uint8:
        return codes, 0
    zero = 2 ** (weight.bits - 1)
    return (codes.to(torch.int16) + zero).to(torch.uint8), zero


def group_scales(
    weight: PackedWeight, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(out, groups) float32, and the minimums where there are any."""
    if isinstance(weight, SuperBlockWeight):
        scales, minimums = weight.group_scales()
    else:
        scales, minimums = weight.scales, weight.minimums
    return scales.to(device).float(), None if minimums is None else minimums.to(device).float()


def step_features(bits: int, group_features: int) -> int:
    """How many a step of the kernel's loop multiplies: one tile of words or two, in all planes."""
    if bits == 4 and group_features == 32:
        return 4 * group_features
    return (4 if bits == 8 else 8) * group_features


def padded(features: int, multiple: int) -> int:
    return -(-features // multiple) * multiple


def pack_words(codes: torch.Tensor, bits: int, group_features: int) -> torch.Tensor:
    """(out, in) uint8 -> (out, words) int32 of their lower four bits, or of all eight."""
    planes = 2 if bits == 8 else 4
    tiles = codes.view(len(codes), -1, planes, group_features // 2, 2)
    if bits == 8:
        first, second = tiles[:, :, 0], tiles[:, :, 1]
    else:
        low = tiles & 15
        first, second = (low[:, :, plane] | low[:, :, plane + 1] << 4 for plane in (0, 2))
    return _words(first, second)


def pack_high_words(codes: torch.Tensor, group_features: int) -> torch.Tensor:
    """(out, in) uint8 -> (out, words / 2) int32 of bits 4 and 5, words being ``pack_words``'s."""
    tiles = (codes >> 4).view(len(codes), -1, 2, 4, group_features // 2, 2)
    first, second = (
        tiles[:, :, tile, 0]
        | tiles[:, :, tile, 1] << 2
        | tiles[:, :, tile, 2] << 4
        | tiles[:, :, tile, 3] << 6
        for tile in (0, 1)
    )
    return _words(first, second)


def _words(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Two bytes of either half, each (out, tiles, words, 2) of even and odd features."""
    return torch.stack([first, second], dim=-1).flatten(1).view(torch.int32)


def pack_scales(
    scales: torch.Tensor, minimums: torch.Tensor | None, num_groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, groups) float32 -> (words, out) int32 for ``num_groups``, those that are not there with
    zeros; and (out,) float32, what they are in units of."""
    both = scales if minimums is None else torch.cat([scales, minimums], dim=1)
    largest = both.abs().amax(dim=1).clamp(min=2.0**-100)
    exponents = torch.frexp(largest).exponent.to(torch.int32) - LARGEST_EXPONENT
    row_scales = ((exponents + 127) << 23).view(torch.float32)
    parts = [scales] if minimums is None else [scales, minimums]
    halves = [
        pad(part / row_scales[:, None], (0, num_groups - part.shape[1])).half() for part in parts
    ]
    pairs = torch.stack(halves, dim=-1).view(len(scales), -1, 2)  # (out, words, 2)
    return pairs.transpose(0, 1).contiguous().view(torch.int32).squeeze(-1), row_scales
