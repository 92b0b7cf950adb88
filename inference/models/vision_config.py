"""The shape of a vision tower, and its processor's sizes. Imports no torch.

pixels ─▶ patches ─▶ blocks ─▶ merged, 2 x 2 to one ─▶ rows of the decoder
                       └─ some blocks' output, merged as well ─▶ added after its first layers
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from inference.protocol.images import ImageDivision, longest_side_px

KEPT_ROWS_BYTES = 128 * 1024**2
"""For prompts with the same image, or for the rest of a prompt in chunks."""


TowerKind = Literal["qwen3_vl", "qwen2_5_vl", "gemma3", "idefics3", "pixtral"]
"""The layers of each are in ``vision_tower``."""


@dataclass(frozen=True, slots=True)
class ImageText:
    placeholder: str
    """The chat template's text for an image."""
    written: str
    """Replaces it, with one ``image_token_id`` in it."""
    part: str = ""
    row_break: str = ""
    parts_end: str = ""
    """These replace it where the image is divided: see ``VisionInput``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    kind: TowerKind = "qwen3_vl"
    image_token_id: int
    """One for each row of an image."""
    patch_px: int
    merge: int
    """Patches each way that become one row of the decoder."""
    temporal_patch: int
    """The frames of a patch: an image is repeated."""
    min_pixels: int
    max_pixels: int
    """The processor scales an image to lie between these."""
    num_channels: int
    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    num_position_embeddings: int = 0
    """Embeddings of ``qwen3_vl``'s square grid, which is stretched over an image's patches."""
    window_px: int = 0
    """The side of ``qwen2_5_vl``'s windows."""
    full_attention_layers: tuple[int, ...] = ()
    """``qwen2_5_vl``'s blocks that see the whole image."""
    deepstack_layers: tuple[int, ...] = ()
    """Blocks whose output is added after the decoder's first layer, its second, and so on."""
    rope_theta: float = 0.0
    """Base of the rotation by height and width; 0: the tower does not rotate."""
    mrope_section: tuple[int, int, int] | None = None
    """Frequencies that turn with time, height and width; ``None``: all with a row's position."""
    is_mrope_interleaved: bool = True
    """Else they are in blocks."""
    image_px: int = 0
    """The side of the square that every image becomes, or each of its tiles; 0: sizes vary."""
    division: ImageDivision = "none"
    """Text stands between the parts' rows in the prompt."""
    is_bidirectional: bool = False
    """Whether the decoder's rows of an image attend to all of it, also to rows behind them."""
    norm_eps: float = 1e-6
    merger_eps: float = 1e-6
    """For the norm of ``pixtral``'s merger."""
    activation: Literal["gelu", "silu"] = "gelu"
    """For the gates of ``pixtral``'s MLPs."""
    has_projector_bias: bool = False
    """For ``pixtral``."""
    has_norm_plus_one: bool = False
    """Whether the files hold the weight of ``gemma3``'s last norm less one."""
    has_swapped_mlp_names: bool = False
    """Whether the file calls the two projections of ``gemma3``'s MLPs by each other's names."""
    text: ImageText | None = None
    """``None``: the template writes ``image_token_id`` itself."""
    image_mean: tuple[float, ...] = ()
    image_std: tuple[float, ...] = ()
    """As an mmproj file declares them; empty: preprocessor_config.json does."""

    @property
    def is_gated(self) -> bool:
        """Such blocks also have norms without a mean."""
        return self.kind in ("qwen2_5_vl", "pixtral")

    @property
    def num_deepstack(self) -> int:
        return len(self.deepstack_layers)

    @property
    def patch_features(self) -> int:
        return self.num_channels * self.temporal_patch * self.patch_px**2

    @property
    def merged_features(self) -> int:
        return self.hidden_size * self.merge**2

    @property
    def most_patches(self) -> int:
        """The most that attend to each other: one image's, or one tile's."""
        if self.image_px:
            return (self.image_px // self.patch_px) ** 2
        if self.division == "rows":
            unit_px = self.patch_px * self.merge
            return ((math.isqrt(self.max_pixels) - 1) // unit_px + 1) ** 2 * self.merge**2
        return self.max_pixels // self.patch_px**2

    @property
    def most_tiles(self) -> int:
        if self.division != "tiles":
            return 1
        per_side = -(-longest_side_px(self) // self.image_px)
        return per_side**2 + 1 if per_side > 1 else 1

    @property
    def row_features(self) -> int:
        return self.out_hidden_size * (1 + len(self.deepstack_layers))

    def step_bytes(self, bytes_per_number: int) -> int:
        """Peak for the largest image: pixels, one block over one tile, and the decoder's rows."""
        is_windowed = self.kind == "qwen2_5_vl"  # heads are copied by window
        of_block = (9 if is_windowed else 6) * self.hidden_size
        of_block += (3 if self.is_gated else 2) * self.intermediate_size
        of_block *= bytes_per_number
        of_tile = self.most_patches * (of_block + 4 * 4 * self.hidden_size)
        num_patches = self.most_tiles * self.most_patches
        of_pixels = 4 * 2 * num_patches * self.patch_features
        num_rows = num_patches // self.merge**2
        return of_tile + of_pixels + num_rows * self.row_features * bytes_per_number
