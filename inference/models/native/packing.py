"""Weights into panels of sixteen output features, in the byte layout that formats.h documents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch.nn.functional import pad

from inference.models.stored import (
    GROUP_FEATURES,
    DenseWeight,
    GroupedWeight,
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


GROUPED_FORMATS = {
    (4, True): Format.Q4,
    (5, False): Format.Q5_0,
    (5, True): Format.Q5_1,
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

    @property
    def num_bytes(self) -> int:
        return self.panels.numel() * self.panels.element_size()


def pack(stored: StoredWeight) -> PackedLinear:
    """Quantised weights keep their codes, dense ones become float32."""
    out_features, in_features = stored.shape
    format, panels = _panels(stored)
    return PackedLinear(
        format=format,
        in_features=in_features,
        out_features=out_features,
        panels=panels,
        bias=None if stored.bias is None else stored.bias.float().contiguous(),
    )


def _panels(stored: StoredWeight) -> tuple[Format, torch.Tensor]:
    if isinstance(stored, DenseWeight):
        return Format.F32, pack_f32(stored.weight)
    if isinstance(stored, SuperBlockWeight):
        return SUPER_BLOCK_FORMATS[stored.bits], pack_super_blocks(stored)
    format = GROUPED_FORMATS[stored.bits, stored.minimums is not None]
    return format, pack_groups(stored)


def pack_groups(weight: GroupedWeight) -> torch.Tensor:
    """uint8 (panels, groups, bytes of a group and its scales). Scales become float16."""
    zero = 0 if weight.minimums is not None else 2 ** (weight.bits - 1)
    # Modulo 256: what is below 0 wraps around to where it belongs.
    codes = weight.codes if zero == 0 else weight.codes.view(torch.uint8) + zero
    heads = [_halves(t) for t in (weight.scales, weight.minimums) if t is not None]
    return torch.cat([*heads, _planes(codes, weight.bits)], dim=-1)


def pack_super_blocks(weight: SuperBlockWeight) -> torch.Tensor:
    """uint8 (panels, super-blocks, bytes)."""
    num_groups = weight.shape[1] // GROUP_FEATURES
    scales = (weight.scales, weight.minimums)
    groups = [_bytes(t, num_groups) for t in scales if t is not None]
    groups.append(_planes(weight.codes, weight.bits))
    supers = (weight.super_scales, weight.super_minimums)
    heads = [_halves(t) for t in supers if t is not None]
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
    by_panel = _pad_rows(values.to(torch.float16)).view(-1, LANES, values.shape[1])
    return by_panel.transpose(1, 2).contiguous().view(torch.uint8)


def _bytes(values: torch.Tensor, num_groups: int) -> torch.Tensor:
    """int8 (out, parts of groups) -> (panels, groups, 16 * parts of a group)."""
    by_panel = _pad_rows(values).view(-1, LANES, values.shape[1]).transpose(1, 2)
    return by_panel.reshape(by_panel.shape[0], num_groups, -1).view(torch.uint8)


def _pad_rows(matrix: torch.Tensor) -> torch.Tensor:
    missing = -matrix.shape[0] % LANES
    return pad(matrix, (0, 0, 0, missing)) if missing else matrix
