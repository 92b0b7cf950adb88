"""The towers other than Qwen3-VL's, and which one a config declares. Patches of one image come in
the order in which they are merged to rows of the decoder.

pixtral      embedded ─▶ norm ─▶ block 0 ─▶ … ─▶ norm ─▶ merged ─▶ projected
siglip       embedded + positions ─▶ blocks ─▶ norm ─┬▶ averaged ─▶ norm ─▶ projected    Gemma 3
                                                     └▶ joined ───────────▶ projected    Idefics3
windowed     embedded ─▶ block 0 ─▶ … ─▶ block n ─▶ merger                               Qwen2.5-VL
                           └ within windows, but for a few blocks that see the whole image

Pixtral: Agrawal et al. 2024, arXiv:2410.07073. SigLIP: Zhai et al. 2023, arXiv:2303.15343; Gemma
Team 2025, arXiv:2503.19786; Laurençon et al. 2024, arXiv:2408.12637. Qwen2.5-VL: Bai et al. 2025,
arXiv:2502.13923.
"""

from __future__ import annotations

import torch
from torch.nn.functional import gelu, linear, rms_norm

from inference.models.families.tower import TOWER
from inference.models.step_input import ImageEmbeddings
from inference.models.vision.tower import (
    EPS,
    PatchBlocks,
    PatchGrid,
    VisionTower,
    Windows,
    affine,
)
from inference.models.vision_config import TowerKind, VisionConfig
from inference.models.weights.weight_source import WeightSource


class PixtralTower(PatchBlocks):
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        super().__init__(config, weights, has_bias=False)
        self._first_norm = affine(weights, "pre_norm", config.norm_eps, has_bias=False)
        self._merger = _Merger(config, weights) if config.merge > 1 else None
        self._projections = [
            affine(weights, f"merger.{name}", has_bias=config.has_projector_bias)
            for name in ("linear_1", "linear_2")
        ]

    @torch.inference_mode()
    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        """``patches`` (num_patches, patch_features) of one image, float32, on any device;
        ``grid``: 1, and the height and width in patches."""
        num_tiles, height, width = grid
        assert num_tiles == 1, "an image is whole"
        places = PatchGrid.of(height, width, self.config.merge, self.device)
        hidden = self._first_norm.norm(self._embedded(patches))
        angles = self._angles(places, takes_turns=True)
        for block in self._blocks:
            hidden = block(hidden, angles)
        if self._merger is not None:
            hidden = self._merger(hidden)
        first, second = self._projections
        return ImageEmbeddings(second.project(gelu(first.project(hidden))))


class _Merger:
    """The features of a row's patches become those of one patch."""

    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self._num_patches = config.merge**2
        self._norm = affine(weights, "merger.norm", config.merger_eps, has_bias=False)
        self._weight = weights.tensor(f"{TOWER}merger.merging.weight")

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(num_patches, hidden_size) -> (num_rows, hidden_size). The weight has the patches of one
        feature after each other."""
        normed = self._norm.norm(hidden)
        by_row = normed.view(-1, self._num_patches, hidden.shape[1])
        return linear(by_row.transpose(1, 2).flatten(1), self._weight)


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


class SiglipTower(PatchBlocks):
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        super().__init__(config, weights, has_bias=True)
        self._positions = weights.tensor(f"{TOWER}pos_embed.weight")
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
        hidden = self._embedded(patches) + self._positions[places.rows * width + places.columns]
        for block in self._blocks:
            hidden = block(hidden)
        return self._projected(self._last_norm.norm(hidden))


class WindowedTower(PatchBlocks):
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        super().__init__(config, weights, has_bias=False)
        self._merger_norm = affine(weights, "merger.ln_q", has_bias=False)
        self._merger = affine(weights, "merger.mlp.0"), affine(weights, "merger.mlp.2")

    @torch.inference_mode()
    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        """``patches`` (num_patches, patch_features) of one image, float32, on any device;
        ``grid``: time, height and width in patches."""
        time, height, width = grid
        assert time == 1, "an image is one frame"
        config = self.config
        places = PatchGrid.of(height, width, config.merge, self.device)
        unit = config.merge * config.patch_px
        windows = Windows.of(places, config.window_px // unit * config.merge)
        hidden, angles = self._embedded(patches), self._angles(places)
        for index, block in enumerate(self._blocks):
            sees_all = index in config.full_attention_layers
            hidden = block(hidden, angles, None if sees_all else windows)
        up, down = self._merger
        merged = self._merger_norm.norm(hidden).view(-1, config.merged_features)
        return ImageEmbeddings(down.project(gelu(up.project(merged))))


AnyTower = VisionTower | WindowedTower | SiglipTower | PixtralTower
TOWERS: dict[TowerKind, type[AnyTower]] = {
    "qwen3_vl": VisionTower,
    "qwen2_5_vl": WindowedTower,
    "gemma3": SiglipTower,
    "idefics3": SiglipTower,
    "pixtral": PixtralTower,
}


def build_tower(config: VisionConfig | None, weights: WeightSource) -> AnyTower | None:
    """``None``: the model reads text alone. Raises ``MissingTensorError``."""
    return None if config is None else TOWERS[config.kind](config, weights)
