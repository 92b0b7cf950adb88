"""The shape of the tower that turns pictures into rows of a decoder, and what its processor makes
of a picture. Filled from config.json and preprocessor_config.json. Imports no torch.

    pixels ─▶ patches ─▶ blocks ─▶ merged, 2 x 2 to one ─▶ rows of the decoder
                           └─ some blocks' output, merged as well ─▶ added after its first layers
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT_ROWS_BYTES = 128 * 1024**2
"""Rows of pictures that are kept for prompts that have the same ones, or go on being computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    image_token_id: int
    """What a prompt holds for each row of a picture."""
    patch_px: int
    merge: int
    """So many patches each way become one row of the decoder."""
    temporal_patch: int
    """How many frames a patch holds: a picture is repeated."""
    min_pixels: int
    max_pixels: int
    """A picture is scaled to lie between these, as the tower sees it."""
    num_channels: int
    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    """The decoder's hidden size."""
    num_position_embeddings: int
    """How many the square grid has that is stretched over a picture's patches."""
    deepstack_layers: tuple[int, ...] = ()
    """Blocks whose output is added to the decoder's rows, the first of them after its first layer,
    and so on."""
    rope_theta: float
    """The base of the tower's own rotation, by height and width."""
    mrope_section: tuple[int, int, int]
    """How many of the decoder's rotary frequencies turn with time, height and width."""

    @property
    def patch_features(self) -> int:
        """Numbers of a patch."""
        return self.num_channels * self.temporal_patch * self.patch_px**2

    @property
    def merged_features(self) -> int:
        return self.hidden_size * self.merge**2

    @property
    def most_patches(self) -> int:
        """The most patches that one picture has."""
        return self.max_pixels // self.patch_px**2

    @property
    def row_features(self) -> int:
        """Numbers that a row of a picture brings to the decoder."""
        return self.out_hidden_size * (1 + len(self.deepstack_layers))

    def step_bytes(self, bytes_per_number: int) -> int:
        """What the tower holds at once of the largest picture: its pixels, what one block makes of
        it, in float32 where it is rotated, and the decoder's rows."""
        of_block = (6 * self.hidden_size + 2 * self.intermediate_size) * bytes_per_number
        of_patch = of_block + 4 * (2 * self.patch_features + 4 * self.hidden_size)
        num_rows = self.most_patches // self.merge**2
        return self.most_patches * of_patch + num_rows * self.row_features * bytes_per_number
