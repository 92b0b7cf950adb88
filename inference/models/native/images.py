"""A step's images, for the native decoder: what its rows are rotated by, and which of them are a
picture's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.models.batch import StepImages
from inference.models.layers.rope import RopeTable
from inference.models.native.structs import CImages, pointer


@dataclass(frozen=True, slots=True)
class NativeImages:
    """``cosines`` and ``sines`` (num_rows, rotary_dim / 2); ``pictured`` (num_rows,) int64: which
    of ``embeddings`` (num_pictured, hidden_size) each row is, or -1; ``deepstack`` (num_deepstack,
    num_pictured, hidden_size). Floats are float32."""

    cosines: torch.Tensor
    sines: torch.Tensor
    pictured: torch.Tensor
    embeddings: torch.Tensor | None
    deepstack: torch.Tensor | None

    def struct(self) -> CImages:
        """Of tensors that are kept alive by this."""
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


def native_images(images: StepImages, rope: RopeTable) -> NativeImages:
    cosines, sines = rope.at_places(images.rotary)
    half = rope.rotary_dim // 2
    pictured = torch.full((len(cosines),), -1)
    rows = images.rows
    if rows is not None:
        pictured[images.row_ids] = torch.arange(len(images.row_ids))
    return NativeImages(
        cosines=cosines[:, 0, :half].contiguous(),
        sines=sines[:, 0, half:].contiguous(),  # the first halves are negated
        pictured=pictured,
        embeddings=None if rows is None else rows.embeddings.float().contiguous(),
        deepstack=torch.stack(rows.deepstack).float() if rows and rows.deepstack else None,
    )
