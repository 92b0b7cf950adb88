"""A step's images, for the native decoder: its rows' rotary angles, and which of them belong to an
image."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.layers.rope import RopeTable
from inference.models.native.structs import CImages, pointer
from inference.models.step_input import StepImages


@dataclass(frozen=True, slots=True)
class NativeImages:
    """``cosines`` and ``sines`` (num_rows, rotary_dim / 2), ``None`` where rows are rotated by
    their positions or not at all;
    ``pictured`` (num_rows,) int64: which of ``embeddings`` (num_pictured, hidden_size) each row is,
    or -1; ``deepstack`` (num_deepstack, num_pictured, hidden_size). Floats are float32."""

    cosines: torch.Tensor | None
    sines: torch.Tensor | None
    pictured: torch.Tensor
    embeddings: torch.Tensor | None
    deepstack: torch.Tensor | None

    def struct(self) -> CImages:
        """Returns a struct that points into tensors which this object keeps alive."""
        rows, added = self.embeddings, self.deepstack
        return CImages(
            cosines=pointer(self.cosines, torch.float32),
            sines=pointer(self.sines, torch.float32),
            pictured=pointer(self.pictured, torch.int64),
            embeddings=pointer(rows, torch.float32),
            deepstack=pointer(added, torch.float32),
            num_pictured=0 if rows is None else len(rows),
            num_deepstack=0 if added is None else len(added),
        )


def native_images(images: StepImages, num_rows: int, rope: RopeTable | None) -> NativeImages:
    """``num_rows``: of the step. ``rope``: what the layers rotate by, ``None`` where none does."""
    cosines, sines = (None, None) if rope is None else _angles(images, rope)
    pictured = torch.full((num_rows,), -1)
    rows = images.rows
    if rows is not None:
        pictured[images.row_ids] = torch.arange(len(images.row_ids))
    return NativeImages(
        cosines=cosines,
        sines=sines,
        pictured=pictured,
        embeddings=None if rows is None else rows.embeddings.float().contiguous(),
        deepstack=torch.stack(rows.deepstack).float() if rows and rows.deepstack else None,
    )


def _angles(
    images: StepImages, rope: RopeTable
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    if images.rotary is None:
        return None, None
    cosines, sines = rope.at_places(images.rotary)
    half = rope.rotary_dim // 2
    # The first halves of the sines are negated.
    return cosines[:, 0, :half].contiguous(), sines[:, 0, half:].contiguous()
