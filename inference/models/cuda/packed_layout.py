"""Quantised weights that stay packed on the card, whatever their format: codes in 4, 6 or 8 bits.

Codes lie in words of 32 bits as the kernels want them, pairs of neighbours in a word's two halves;
a *plane* of a tile of words is what they have at one shift, a group of features:

    bits        31 .. 28  27 .. 24  23 .. 20  19 .. 16 | 15 .. 12  11 .. 8    7 .. 4    3 .. 0
    4 bits      plane 3   plane 2   plane 1   plane 0  | plane 3   plane 2   plane 1   plane 0
                          odd features                               even features
    8 bits          plane 1             plane 0        |     plane 1             plane 0
    5, 6 bits   as 4 bits, and the upper two of each code in words of their own, one for the two
                words that follow each other in a row's tiles: 2 bits for each of eight planes

2 and 3 bits are stored as 4, and so are places in a table of at most 16 values. Scales and minimums
are float16 in units of ``row_scales``, powers of two that keep a row's largest near float16's: a
word for a group's scale and minimum, or for the scales of two groups where there are no minimums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.nn.functional import pad

from inference.models.stored_weights import Codebook, CodebookWeight, PackedWeight, SuperBlockWeight

PARTS = (4, 2, 1)
"""Numbers of parts that a row's features may be cut into, the best first: each is a warp's."""


LARGEST_EXPONENT = 7
"""Scales and minimums are below 2**7 in their row's units: times any code they fit float16."""


@dataclass(frozen=True, slots=True)
class Packed:
    words: torch.Tensor
    high_words: torch.Tensor | None
    scales: torch.Tensor | None
    row_scales: torch.Tensor | None
    layout: dict[str, Any]
    """The kernels' arguments that follow from the format and the width."""
    parts: int
    table: torch.Tensor | None = None
    """The table of codes that are places in one: ``pair_table``."""

    @property
    def tile_words(self) -> int:
        return int(self.layout["group_features"]) // 2

    def is_like(self, other: Packed) -> bool:
        """Whether one kernel takes both, whose tensors lie one after the other."""
        if (self.table is None) != (other.table is None):
            return False
        if self.table is not None and not torch.equal(self.table, cast(torch.Tensor, other.table)):
            return False
        return self.layout == other.layout and self.words.shape == other.words.shape


def pack(weight: PackedWeight, device: torch.device) -> Packed:
    codes, zero = unsigned_codes(weight, device)
    scales, minimums = group_scales(weight, device)
    packed = pack_codes(codes, zero, code_bits(weight), scales, minimums, is_float=False)
    if not isinstance(weight, CodebookWeight):
        return packed
    return replace(packed, table=pair_table(weight.codebook, device))


def pair_table(codebook: Codebook, device: torch.device) -> torch.Tensor:
    """(256,) int32: the two values' float16 for each pair of codes, the first in the lower bits."""
    values = torch.zeros(16)
    values[: len(codebook.values)] = torch.tensor(codebook.values, dtype=torch.float32)
    places = torch.arange(256)
    pairs = torch.stack([values[places & 15], values[places >> 4]], dim=1)
    return pairs.half().view(torch.int32).flatten().to(device)


def code_bits(weight: PackedWeight) -> int:
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


def unsigned_codes(weight: PackedWeight, device: torch.device) -> tuple[torch.Tensor, int]:
    """(out, in) uint8, and the code that stands for zero."""
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
    elif isinstance(weight, CodebookWeight):
        scales, minimums = weight.group_scales(), None
    else:
        scales, minimums = weight.scales, weight.minimums
    return scales.to(device).float(), None if minimums is None else minimums.to(device).float()


def step_features(bits: int, group_features: int) -> int:
    """Features of a step of the kernel's loop: one tile of words or two, in all planes."""
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
    """(out, groups) float32 -> (words, out) int32, padded to ``num_groups``; (out,) float32."""
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
