"""Weights into panels of sixteen output features, in the byte layout that linear.h documents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch.nn.functional import pad

from inference.models.stored import GroupedWeight, StoredWeight

LANES = 16
GROUP = 32


class Format(IntEnum):
    """``enum Format`` of linear.h."""

    F32 = 0
    Q4 = 1
    Q8 = 2


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
    if not isinstance(stored, GroupedWeight):
        return Format.F32, pack_f32(stored.weight)
    if stored.minimums is None:
        return Format.Q8, pack_q8(stored.codes, stored.scales)
    return Format.Q4, pack_q4(stored.codes, stored.scales, stored.minimums)


def pack_q4(codes: torch.Tensor, scales: torch.Tensor, minimums: torch.Tensor) -> torch.Tensor:
    """``codes`` uint8 (out, in) of 0..15, ``scales`` and ``minimums`` float16 (out, in / 32);
    w = scale * code + minimum. Returns uint8 (panels, groups, 320)."""
    codes, scales, minimums = _pad_rows(codes), _pad_rows(scales), _pad_rows(minimums)
    num_panels, num_groups = codes.shape[0] // LANES, codes.shape[1] // GROUP
    # (panel, lane, group, j, half, i): feature 8 j + 4 half + i of the group.
    split = codes.view(num_panels, LANES, num_groups, 4, 2, 4)
    nibbles = split[:, :, :, :, 0] | (split[:, :, :, :, 1] << 4)
    body = nibbles.permute(0, 2, 3, 1, 4).reshape(num_panels, num_groups, 256)
    return torch.cat([_by_panel(scales), _by_panel(minimums), body], dim=-1).contiguous()


def pack_q8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``codes`` int8 (out, in), ``scales`` float16 (out, in / 32); w = scale * code.
    Returns uint8 (panels, groups, 544)."""
    unsigned = _pad_rows((codes.to(torch.int16) + 128).to(torch.uint8), fill=128)
    scales = _pad_rows(scales)
    num_panels, num_groups = unsigned.shape[0] // LANES, unsigned.shape[1] // GROUP
    split = unsigned.view(num_panels, LANES, num_groups, 8, 4)
    body = split.permute(0, 2, 3, 1, 4).reshape(num_panels, num_groups, 512)
    return torch.cat([_by_panel(scales), body], dim=-1).contiguous()


def pack_f32(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` (out, in) of any float dtype. Returns float32 (panels, in, 16)."""
    padded = _pad_rows(weight.float())
    return padded.view(-1, LANES, weight.shape[1]).permute(0, 2, 1).contiguous()


def _by_panel(values: torch.Tensor) -> torch.Tensor:
    """float16 (out, groups) -> its bytes as (panels, groups, 32)."""
    lanes_last = values.to(torch.float16).view(-1, LANES, values.shape[1]).permute(0, 2, 1)
    return lanes_last.contiguous().view(torch.uint8)


def _pad_rows(matrix: torch.Tensor, fill: int = 0) -> torch.Tensor:
    missing = -matrix.shape[0] % LANES
    return pad(matrix, (0, 0, 0, missing), value=fill) if missing else matrix
