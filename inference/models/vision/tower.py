"""A vision tower: from the patches of an image to rows of a decoder. Patches of one image come in
the order in which they are merged.

    patches ─▶ embedded (+ positions) (─▶ norm) ─▶ block 0 ─▶ … ─▶ block n (─▶ norm) ─▶ projector

qwen3_vl     positions; 4 patches joined, an MLP; some blocks' output by mergers of their own, to be
             added after one of the decoder's first layers
qwen2_5_vl   all but a few blocks within windows; a norm, 4 patches joined, an MLP
gemma3       positions, last norm; patches averaged, a norm, a projection
idefics3     positions, last norm; patches joined, a projection; tile after tile
pixtral      first norm; 4 patches merged by a projection of their own, an MLP

SigLIP: Zhai et al. 2023, arXiv:2303.15343; Gemma Team 2025, arXiv:2503.19786; Laurençon et al.
2024, arXiv:2408.12637. Qwen2.5-VL: Bai et al. 2025, arXiv:2502.13923. Pixtral: Agrawal et al. 2024,
arXiv:2410.07073.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import gelu, linear, rms_norm

from inference.models.families.tower import TOWER
from inference.models.step_input import ImageEmbeddings
from inference.models.vision.blocks import (
    EPS,
    Affine,
    PatchGrid,
    Windows,
    affine,
    interpolated,
    load_block,
    rotary_angles,
)
from inference.models.vision_config import TowerKind, VisionConfig
from inference.models.weight_source import WeightSource

Projector = Callable[[torch.Tensor], torch.Tensor]
"""(num_patches, hidden_size) of the last block -> (num_rows, out_hidden_size)."""


def joining_merger(
    config: VisionConfig,
    weights: WeightSource,
    prefix: str = "merger.",
    *,
    merges_first: bool = False,
) -> Projector:
    """``merges_first``: whether the norm is of merged patches."""
    names = ("ln_q", "mlp.0", "mlp.2") if config.is_gated else ("norm", "linear_fc1", "linear_fc2")
    norm = affine(weights, prefix + names[0], has_bias=not config.is_gated)
    up, down = (affine(weights, prefix + name) for name in names[1:])
    merged = config.merged_features
    normed = merged if merges_first else config.hidden_size

    def project(hidden: torch.Tensor) -> torch.Tensor:
        rows = norm.norm(hidden.view(-1, normed)).view(-1, merged)
        return down.project(gelu(up.project(rows)))

    return project


def averaging(config: VisionConfig, weights: WeightSource) -> Projector:
    per_row = config.merge**2
    norm = weights.tensor(f"{TOWER}merger.norm.weight")
    norm = norm + 1 if config.has_norm_plus_one else norm
    projection = weights.tensor(f"{TOWER}merger.proj.weight")

    def project(hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.view(-1, per_row, hidden.shape[1]).mean(1)
        return rms_norm(rows, norm.shape, norm, EPS) @ projection

    return project


def joining(config: VisionConfig, weights: WeightSource) -> Projector:
    projection = weights.tensor(f"{TOWER}merger.proj.weight")
    return lambda hidden: linear(hidden.view(-1, config.merged_features), projection)


def pixtral_projector(config: VisionConfig, weights: WeightSource) -> Projector:
    """The weight that merges has the patches of one feature after each other."""
    first, second = (
        affine(weights, f"merger.{name}", has_bias=config.has_projector_bias)
        for name in ("linear_1", "linear_2")
    )
    if config.merge == 1:
        return lambda hidden: second.project(gelu(first.project(hidden)))
    norm = affine(weights, "merger.norm", config.merger_eps, has_bias=False)
    merging = weights.tensor(f"{TOWER}merger.merging.weight")

    def project(hidden: torch.Tensor) -> torch.Tensor:
        by_row = norm.norm(hidden).view(-1, config.merge**2, hidden.shape[1])
        merged = linear(by_row.transpose(1, 2).flatten(1), merging)
        return second.project(gelu(first.project(merged)))

    return project


PROJECTORS: dict[TowerKind, Callable[[VisionConfig, WeightSource], Projector]] = {
    "qwen3_vl": joining_merger,
    "qwen2_5_vl": joining_merger,
    "gemma3": averaging,
    "idefics3": joining,
    "pixtral": pixtral_projector,
}


class Tower:
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self.config = config
        self.device = weights.device
        self.dtype = weights.activation_dtype
        self._patches = affine(weights, "patch_embed.proj", has_bias=not config.is_gated)
        self._positions = (
            weights.tensor(f"{TOWER}pos_embed.weight") if config.num_position_embeddings else None
        )

        def norm(name: str, is_there: bool) -> Affine | None:
            has_bias = not config.is_gated
            return affine(weights, name, config.norm_eps, has_bias=has_bias) if is_there else None

        self._first_norm = norm("pre_norm", config.kind == "pixtral")
        self._last_norm = norm("post_norm", bool(config.image_px))
        self._blocks = [load_block(weights, f"blocks.{i}.", config) for i in range(config.depth)]
        self._projector = PROJECTORS[config.kind](config, weights)
        self._deepstack_mergers = {
            layer: joining_merger(
                *(config, weights, f"deepstack_merger_list.{index}."), merges_first=True
            )
            for index, layer in enumerate(config.deepstack_layers)
        }

    @torch.inference_mode()
    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        """``patches`` (num_patches, patch_features) of one image, float32, on any device, tile
        after tile; ``grid``: the number of tiles, and the height and width of each in patches,
        which a trial may have fewer of."""
        num_tiles, height, width = grid
        assert num_tiles == 1 or self.config.kind == "idefics3", "other images are whole"
        deepstack: list[torch.Tensor] = []
        rows = [self._rows(tile, height, width, deepstack) for tile in patches.chunk(num_tiles)]
        return ImageEmbeddings(torch.cat(rows), tuple(deepstack))

    def _rows(
        self, patches: torch.Tensor, height: int, width: int, deepstack: list[torch.Tensor]
    ) -> torch.Tensor:
        """(num_rows, out_hidden_size) of one tile, whose patches attend to each other alone."""
        config = self.config
        places = PatchGrid.of(height, width, config.merge, self.device)
        embedding = self._patches.weight.flatten(1)
        hidden = linear(patches.to(self.device, self.dtype), embedding, self._patches.bias)
        if self._positions is not None:
            hidden = hidden + self._places(self._positions, places)
        if self._first_norm is not None:
            hidden = self._first_norm.norm(hidden)
        angles = windows = None
        if config.rope_theta:
            head_dim, takes_turns = config.hidden_size // config.num_heads, config.kind == "pixtral"
            angles = rotary_angles(places, head_dim, config.rope_theta, takes_turns=takes_turns)
        if config.window_px:
            unit_px = config.merge * config.patch_px
            windows = Windows.of(places, config.window_px // unit_px * config.merge)
        for index, block in enumerate(self._blocks):
            sees_all = index in config.full_attention_layers
            hidden = block(hidden, angles, None if sees_all else windows)
            if (merger := self._deepstack_mergers.get(index)) is not None:
                deepstack.append(merger(hidden))
        if self._last_norm is not None:
            hidden = self._last_norm.norm(hidden)
        return self._projector(hidden)

    def _places(self, table: torch.Tensor, places: PatchGrid) -> torch.Tensor:
        """The learned positions: those of squares of one size as they are, else stretched."""
        if not self.config.image_px:
            return interpolated(table, places).to(self.dtype)
        assert places.height * places.width <= len(table), "all tiles are of one size"
        return table[places.rows * places.width + places.columns]


def build_tower(config: VisionConfig | None, weights: WeightSource) -> Tower | None:
    """``None``: the model reads text alone. Raises ``MissingTensorError``."""
    return None if config is None else Tower(config, weights)
