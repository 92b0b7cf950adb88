"""Weights into panels of sixteen output features, in the byte layout that formats.h documents."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch.nn.functional import pad

from inference.models.weights.codebook import HALF_GROUP_FEATURES, Codebook, CodebookWeight
from inference.models.weights.stored import (
    GROUP_FEATURES,
    DenseWeight,
    PackedWeight,
    StoredWeight,
    SuperBlockWeight,
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
"""By bits, and whether there are minimums."""

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
"""By bits, features of a scale, and whether there are super-scales."""

VALUE_RANGES = {Format.T2: (-8, 7), Format.T4H: (-16, 15), Format.T3K: (-48, 48)}
"""Of a codebook; of other formats it is that of all codebooks."""

PLANE_BITS = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""How codes are cut into planes, low bits first."""


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


class _TakenApart(ctypes.Structure):
    """``TakenApart`` of pack.h."""

    _fields_ = [
        ("out_features", ctypes.c_int64),
        ("in_features", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("heads", ctypes.c_void_p * 2),
        ("smalls", ctypes.c_void_p * 2),
        ("num_heads", ctypes.c_int32),
        ("num_smalls", ctypes.c_int32),
        ("block_groups", ctypes.c_int32),
        ("parts", ctypes.c_int32),
        ("added", ctypes.c_int32),
        ("num_planes", ctypes.c_int32),
        ("plane_bits", ctypes.c_int32 * 2),
    ]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What panels are made of. ``heads`` (out, blocks) float16; ``smalls`` (out, parts of groups)
    int8."""

    bits: int
    codes: torch.Tensor
    added: int
    heads: list[torch.Tensor]
    smalls: list[torch.Tensor]


def pack(stored: StoredWeight, library: ctypes.CDLL | None = None) -> PackedLinear:
    """Quantised weights keep their codes, dense ones become float32. With the native ``library``
    it is some ten times faster, and other threads run meanwhile."""
    out_features, in_features = stored.shape
    if isinstance(stored, DenseWeight):
        panels = pack_f32(stored.weight)
    elif library is None:
        panels = _joined(_parts(stored))
    else:
        panels = _joined_natively(_parts(stored), library)
    return PackedLinear(
        format=_format(stored),
        in_features=in_features,
        out_features=out_features,
        panels=panels,
        bias=None if stored.bias is None else stored.bias.float().contiguous(),
        codebook=stored.codebook if isinstance(stored, CodebookWeight) else None,
    )


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


def _parts(stored: PackedWeight) -> _Parts:
    """Scales of groups become float16. What is below 0 wraps around to where it belongs."""
    if isinstance(stored, SuperBlockWeight):
        heads = _given(stored.super_scales, stored.super_minimums)
        smalls, added = _given(stored.scales, stored.minimums), 0
    elif isinstance(stored, CodebookWeight):
        heads, smalls = _codebook_scales(stored)
        added = 0
    else:
        heads, smalls = _given(stored.scales, stored.minimums), []
        added = 0 if stored.minimums is not None else 2 ** (stored.bits - 1)
    return _Parts(
        stored.bits,
        stored.codes.view(torch.uint8).contiguous(),
        added,
        [head.to(torch.float16).contiguous() for head in heads],
        [small.contiguous() for small in smalls],
    )


def _codebook_scales(stored: CodebookWeight) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Where a group has two scales, its head has the first ones and then the second ones."""
    if stored.super_scales is not None:
        return [stored.super_scales], [stored.scales]
    per_group = GROUP_FEATURES // stored.group_features
    return [stored.scales[:, part::per_group] for part in range(per_group)], []


def _given(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _joined_natively(parts: _Parts, library: ctypes.CDLL) -> torch.Tensor:
    """uint8 (panels, blocks, bytes of a block)."""
    out_features, in_features = parts.codes.shape
    num_blocks, num_groups = parts.heads[0].shape[1], in_features // GROUP_FEATURES
    parts_each = parts.smalls[0].shape[1] // num_groups if parts.smalls else 0
    head_bytes = 2 * LANES * len(parts.heads)
    group_bytes = LANES * parts_each * len(parts.smalls) + 64 * parts.bits
    num_panels = -(-out_features // LANES)
    block_bytes = head_bytes + num_groups // num_blocks * group_bytes
    panels = torch.empty(num_panels, num_blocks, block_bytes, dtype=torch.uint8)
    planes = PLANE_BITS[parts.bits]
    taken_apart = _TakenApart(
        out_features=out_features,
        in_features=in_features,
        codes=parts.codes.data_ptr(),
        heads=tuple(head.data_ptr() for head in parts.heads),
        smalls=tuple(small.data_ptr() for small in parts.smalls),
        num_heads=len(parts.heads),
        num_smalls=len(parts.smalls),
        block_groups=num_groups // num_blocks,
        parts=parts_each,
        added=parts.added,
        num_planes=len(planes),
        plane_bits=planes,
    )
    library.helexa_pack(ctypes.byref(taken_apart), ctypes.c_void_p(panels.data_ptr()))
    return panels


def _joined(parts: _Parts) -> torch.Tensor:
    """The same without a library."""
    num_groups = parts.codes.shape[1] // GROUP_FEATURES
    heads = [_halves(head) for head in parts.heads]
    groups = [_bytes(small, num_groups) for small in parts.smalls]
    groups.append(_planes(parts.codes + parts.added, parts.bits))
    body = torch.cat(groups, dim=-1)
    return torch.cat([*heads, body.view(*heads[0].shape[:2], -1)], dim=-1)


def pack_f32(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` (out, in) of any float dtype. Returns float32 (panels, in, 16)."""
    padded = _pad_rows(weight.float())
    return padded.view(-1, LANES, weight.shape[1]).permute(0, 2, 1).contiguous()


def _planes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Unsigned codes, uint8 (out, in) -> (panels, groups, 64 * bits)."""
    codes = _pad_rows(codes)
    if bits in PLANE_BITS[bits]:
        return _plane(codes, bits)
    low, high = PLANE_BITS[bits]
    return torch.cat([_plane(codes & (2**low - 1), low), _plane(codes >> low, high)], dim=-1)


def _plane(digits: torch.Tensor, width: int) -> torch.Tensor:
    """uint8 (rows, in) of ``width`` bits each -> (panels, groups, 64 * width)."""
    per_byte = 8 // width
    # (panel, lane, group, j, k, i): feature 4 (per_byte j + k) + i of the group.
    split = digits.view(-1, LANES, digits.shape[1] // GROUP_FEATURES, width, per_byte, 4)
    joined = split[:, :, :, :, 0]
    for k in range(1, per_byte):
        joined = joined | (split[:, :, :, :, k] << (width * k))
    num_panels, _, num_groups = joined.shape[:3]
    return joined.permute(0, 2, 3, 1, 4).reshape(num_panels, num_groups, -1)


def _halves(values: torch.Tensor) -> torch.Tensor:
    """(out, groups) -> its float16 bytes as (panels, groups, 32)."""
    by_panel = _pad_rows(values).view(-1, LANES, values.shape[1])
    return by_panel.transpose(1, 2).contiguous().view(torch.uint8)


def _bytes(values: torch.Tensor, num_groups: int) -> torch.Tensor:
    """int8 (out, parts of groups) -> (panels, groups, 16 * parts of a group)."""
    by_panel = _pad_rows(values).view(-1, LANES, values.shape[1]).transpose(1, 2)
    return by_panel.reshape(by_panel.shape[0], num_groups, -1).view(torch.uint8)


def _pad_rows(matrix: torch.Tensor) -> torch.Tensor:
    missing = -matrix.shape[0] % LANES
    return pad(matrix, (0, 0, 0, missing)) if missing else matrix
