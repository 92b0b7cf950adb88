"""Weights into panels of sixteen output features, in the byte layout that formats.h documents."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch.nn.functional import pad

from inference.models.native.headers import STRUCTS
from inference.models.stored_weights import (
    GROUP_FEATURES,
    HALF_GROUP_FEATURES,
    Codebook,
    CodebookWeight,
    DenseWeight,
    GroupedWeight,
    PackedWeight,
    StoredWeight,
    SuperBlockWeight,
    in_four_bits,
)

LANES = 16


class Format(IntEnum):
    """``enum Format`` of formats.h."""

    F32 = 0
    Q4 = 1
    Q8 = 2
    Q5_0 = 3
    Q5_1 = 4
    Q2_K = 5
    Q3_K = 6
    Q4_K = 7
    Q5_K = 8
    Q6_K = 9
    Q6 = 10
    T2 = 11
    T4 = 12
    T4H = 13
    T3K = 14
    T4K = 15


GROUPED_FORMATS = {
    (4, True): Format.Q4,
    (5, False): Format.Q5_0,
    (5, True): Format.Q5_1,
    (6, False): Format.Q6,
    (8, False): Format.Q8,
}
"""The format for a number of bits, and whether there are minimums."""

SUPER_BLOCK_FORMATS = {
    2: Format.Q2_K,
    3: Format.Q3_K,
    4: Format.Q4_K,
    5: Format.Q5_K,
    6: Format.Q6_K,
}

CODEBOOK_FORMATS = {
    (2, GROUP_FEATURES, False): Format.T2,
    (4, GROUP_FEATURES, False): Format.T4,
    (4, HALF_GROUP_FEATURES, False): Format.T4H,
    (3, HALF_GROUP_FEATURES, True): Format.T3K,
    (4, GROUP_FEATURES, True): Format.T4K,
}
"""The format for a number of bits, the features of a scale, and whether there are super-scales."""

VALUE_RANGES = {Format.T2: (-8, 7), Format.T4H: (-16, 15), Format.T3K: (-48, 48)}
"""The values' range of a codebook; of other formats it is that of all codebooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """``panels`` is what the native code reads; ``bias`` is float32 (out_features,) or ``None``."""

    format: Format
    in_features: int
    out_features: int
    panels: torch.Tensor
    bias: torch.Tensor | None = None
    codebook: Codebook | None = None

    @property
    def num_bytes(self) -> int:
        return self.panels.numel() * self.panels.element_size()


TakenApart = STRUCTS["TakenApart"]


def pack(stored: StoredWeight, library: ctypes.CDLL | None = None) -> PackedLinear:
    """Quantised weights keep their codes, dense ones become float32. ``library`` packs quantised
    weights, while other threads run."""
    packed = unwritten(stored, stored.shape[0], stored.bias)
    write_panels(stored, packed.panels, library)
    return packed


def unwritten(sample: StoredWeight, out_features: int, bias: torch.Tensor | None) -> PackedLinear:
    """A weight of ``out_features`` rows like those of ``sample``, whose panels are still to be
    written: sixteen rows each, along the first axis."""
    sample = _as_packed(sample)
    num_rows, in_features = sample.shape
    num_panels = -(-out_features // LANES)
    if isinstance(sample, DenseWeight):
        panels = torch.empty(num_panels, in_features, LANES)
    else:
        row_bytes = sample.packed_bytes // num_rows
        panels = torch.empty(num_panels, LANES * row_bytes, dtype=torch.uint8)
    return PackedLinear(
        format=_format(sample),
        in_features=in_features,
        out_features=out_features,
        panels=panels,
        bias=None if bias is None else bias.float().contiguous(),
        codebook=sample.codebook if isinstance(sample, CodebookWeight) else None,
    )


def write_panels(stored: StoredWeight, panels: torch.Tensor, library: ctypes.CDLL | None) -> None:
    """Writes ``stored`` into ``panels``, as many as its rows fill; they may fill the last one in
    part. ``library`` as of ``pack``."""
    stored = _as_packed(stored)
    if isinstance(stored, DenseWeight):
        num_rows, in_features = stored.shape
        padded = pad(stored.weight.float().contiguous(), (0, 0, 0, -num_rows % LANES))
        panels.copy_(padded.view(-1, LANES, in_features).permute(0, 2, 1))
    else:
        assert library is not None, "only dense weights are packed without"
        _write(stored, panels, library)


def _as_packed(stored: StoredWeight) -> StoredWeight:
    """The form that a format here has."""
    if isinstance(stored, GroupedWeight) and stored.is_mxfp4:
        coded = in_four_bits(stored)
        return replace(coded, scales=coded.scales.half())
    return stored


def _format(stored: StoredWeight) -> Format:
    if isinstance(stored, DenseWeight):
        return Format.F32
    if isinstance(stored, SuperBlockWeight):
        return SUPER_BLOCK_FORMATS[stored.bits]
    if isinstance(stored, CodebookWeight):
        return _codebook_format(stored)
    return GROUPED_FORMATS[stored.bits, stored.minimums is not None]


def _codebook_format(stored: CodebookWeight) -> Format:
    has_supers = stored.super_scales is not None
    format = CODEBOOK_FORMATS[stored.bits, stored.group_features, has_supers]
    least, most = VALUE_RANGES.get(format, (-127, 127))
    assert all(least <= value <= most for value in stored.codebook.values)
    return format


def _write(stored: PackedWeight, panels: torch.Tensor, library: ctypes.CDLL) -> None:
    """Scales of groups become float16. A negative number wraps around to its unsigned code."""
    codes = stored.codes.view(torch.uint8).contiguous()
    heads, smalls = _scales(stored)
    heads = [head.to(torch.float16).contiguous() for head in heads]
    smalls = [small.contiguous() for small in smalls]
    are_signed = isinstance(stored, GroupedWeight) and stored.minimums is None
    taken_apart = TakenApart(
        format=_format(stored),
        out_features=len(codes),
        in_features=codes.shape[1],
        codes=codes.data_ptr(),
        heads=tuple(head.data_ptr() for head in heads),
        smalls=tuple(small.data_ptr() for small in smalls),
        added=2 ** (stored.bits - 1) if are_signed else 0,
    )
    assert panels.is_contiguous() and len(panels) == -(-len(codes) // LANES)
    library.helexa_pack(ctypes.byref(taken_apart), ctypes.c_void_p(panels.data_ptr()))


def _scales(stored: PackedWeight) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the scales and minimums of a block's head (out, blocks each) and its groups' small
    ones (out, parts of groups each). Where a group has two scales and no small ones, its head has
    the first ones and then the second ones."""
    minimums = stored.minimums
    if isinstance(stored, GroupedWeight):
        return _given(stored.scales, minimums), []
    if isinstance(stored, SuperBlockWeight):
        heads = _given(stored.super_scales, stored.super_minimums)
        return heads, _given(stored.scales, minimums)
    if stored.super_scales is not None:
        return [stored.super_scales], [stored.scales]
    per_group = GROUP_FEATURES // stored.group_features
    return [stored.scales[:, part::per_group] for part in range(per_group)], []


def _given(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]
