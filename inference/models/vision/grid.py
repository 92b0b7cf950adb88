"""The positions of an image's patches, and their encodings for the tower: a learned grid stretched
over them, and rotary angles by height and width.

    merge 2:   0 1 4 5      patches are numbered in the order in which they are merged
               2 3 6 7
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """``rows`` and ``columns`` (num_patches,) int64, of each patch."""

    rows: torch.Tensor
    columns: torch.Tensor
    height: int
    width: int

    @classmethod
    def of(cls, height: int, width: int, merge: int, device: torch.device) -> PatchGrid:
        shape = height // merge, width // merge, merge, merge
        rows = torch.arange(height, device=device).view(shape[0], 1, merge, 1).expand(shape)
        columns = torch.arange(width, device=device).view(1, shape[1], 1, merge).expand(shape)
        return cls(rows.flatten(), columns.flatten(), height, width)


def interpolated(table: torch.Tensor, places: PatchGrid) -> torch.Tensor:
    """Stretches a square grid of embeddings (side**2, hidden_size) so that its corners are the
    image's: each patch lies between four neighbours, (num_patches, hidden_size) float32."""
    side = math.isqrt(len(table))
    upper, lower, below = _neighbours(places.rows, places.height, side)
    left, right, beside = _neighbours(places.columns, places.width, side)
    total = torch.zeros(len(places.rows), table.shape[1], device=table.device)
    for row, row_weight in ((upper, 1 - below), (lower, below)):
        for column, column_weight in ((left, 1 - beside), (right, beside)):
            embeddings = table.index_select(0, row * side + column)
            total += embeddings * (row_weight * column_weight).unsqueeze(1)
    return total


def _neighbours(
    index: torch.Tensor, size: int, side: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns where places ``index`` on an axis of ``size`` lie on a grid of ``side``: the one
    before, the one after, and how far towards the latter."""
    place = index.float() * (side - 1) / max(size - 1, 1)
    before = place.floor()
    first = before.long()
    return first, (first + 1).clamp(max=side - 1), place - before


def rotary_angles(
    places: PatchGrid, head_dim: int, theta: float, *, takes_turns: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines as ``rope.rotate`` takes them, (num_patches, 1, head_dim) float32: a
    quarter of a head's pairs turns with the row, a quarter with the column, and so again.
    ``takes_turns``: rows and columns have every other frequency each, and not the same ones."""
    half = head_dim // 2
    exponents = torch.arange(0, half, 2, dtype=torch.float32, device=places.rows.device) / half
    of_columns = exponents + 1 / half if takes_turns else exponents
    angles = torch.cat(
        [
            axis.float().unsqueeze(1) / theta**powers
            for axis, powers in ((places.rows, exponents), (places.columns, of_columns))
        ],
        dim=1,
    )
    cosines, sines = angles.cos(), angles.sin()
    return (
        torch.cat((cosines, cosines), dim=1).unsqueeze(1),
        torch.cat((-sines, sines), dim=1).unsqueeze(1),
    )
