"""SigLIP over squares of one size, which are an image or its tiles, to rows of the decoder.

    patches ─▶ embedded + positions ─▶ blocks ─▶ norm ─┬▶ averaged ─▶ norm ─▶ projected ─▶ rows
                                                       └▶ joined ───────────▶ projected ─▶ rows

Gemma 3 averages the patches of a row, Idefics3 joins their features. Patches come in the order in
which they are merged: those of one row of the decoder after each other. Zhai et al. 2023,
arXiv:2303.15343; Gemma Team 2025, arXiv:2503.19786; Laurençon et al. 2024, arXiv:2408.12637.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, rms_norm

from inference.models.families.tower import TOWER
from inference.models.vision.grid import PatchGrid
from inference.models.vision.tower import EPS, ImageEmbeddings, affine, load_block
from inference.models.vision_config import VisionConfig
from inference.models.weights.weight_source import WeightSource


class AveragedRows:
    """Gemma 3's projector."""

    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self._per_row = config.merge**2
        norm = weights.tensor(f"{TOWER}merger.norm.weight")
        self._norm = norm + 1 if config.has_norm_plus_one else norm
        self._projection = weights.tensor(f"{TOWER}merger.proj.weight")

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(num_patches, hidden_size) -> (num_rows, out_hidden_size)."""
        rows = hidden.view(-1, self._per_row, hidden.shape[1]).mean(1)
        return rms_norm(rows, self._norm.shape, self._norm, EPS) @ self._projection


class JoinedRows:
    """Idefics3's projector."""

    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self._features = config.merged_features
        self._projection = weights.tensor(f"{TOWER}merger.proj.weight")

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(num_patches, hidden_size) -> (num_rows, out_hidden_size)."""
        return linear(hidden.view(-1, self._features), self._projection)


class SiglipTower:
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self.config = config
        self.device = weights.device
        self.dtype = weights.activation_dtype
        self._patches = affine(weights, "patch_embed.proj")
        self._positions = weights.tensor(f"{TOWER}pos_embed.weight")
        self._blocks = [load_block(weights, f"blocks.{i}.", config) for i in range(config.depth)]
        self._last_norm = affine(weights, "post_norm", config.norm_eps)
        projector = AveragedRows if config.kind == "gemma3" else JoinedRows
        self._projected = projector(config, weights)

    @torch.inference_mode()
    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        """``patches`` (num_patches, patch_features) of one image, float32, on any device, tile
        after tile; ``grid``: the number of tiles, and the height and width of each in patches,
        which a trial may have fewer of."""
        num_tiles, height, width = grid
        rows = [self._rows(tile, height, width) for tile in patches.chunk(num_tiles)]
        return ImageEmbeddings(torch.cat(rows))

    def _rows(self, patches: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """(num_rows, out_hidden_size) of one tile, whose patches attend to each other alone."""
        assert height * width <= len(self._positions), "all tiles are of one size"
        places = PatchGrid.of(height, width, self.config.merge, self.device)
        weight = self._patches.weight.flatten(1)
        hidden = linear(patches.to(self.device, self.dtype), weight, self._patches.bias)
        hidden = hidden + self._positions[places.rows * width + places.columns]
        for block in self._blocks:
            hidden = block(hidden)
        return self._projected(self._last_norm.norm(hidden))
