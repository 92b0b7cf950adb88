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

from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention, silu

from inference.models.families.tower import TOWER
from inference.models.layers.rope import rotate
from inference.models.vision.tower import (
    EPS,
    Affine,
    ImageEmbeddings,
    PatchGrid,
    VisionTower,
    affine,
    load_block,
    rotary_angles,
)
from inference.models.vision_config import TowerKind, VisionConfig
from inference.models.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    config: VisionConfig
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def __call__(
        self, hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """(num_patches, hidden_size); every patch of the image attends to every other."""
        eps, num_heads = self.config.norm_eps, self.config.num_heads
        qkv = linear(_norm(hidden, self.attention_norm, eps), self.qkv)
        queries, keys, values = qkv.view(len(hidden), 3, num_heads, -1).unbind(1)
        queries, keys = (
            rotate(heads.float(), *angles).to(values.dtype) for heads in (queries, keys)
        )
        queries, keys, values = (
            heads.transpose(0, 1).unsqueeze(0) for heads in (queries, keys, values)
        )
        attended = scaled_dot_product_attention(queries, keys, values)
        hidden = hidden + linear(attended.squeeze(0).transpose(0, 1).flatten(1), self.output)
        normed = _norm(hidden, self.mlp_norm, eps)
        activated = (silu if self.config.activation == "silu" else gelu)(linear(normed, self.gate))
        return hidden + linear(activated * linear(normed, self.up), self.down)


class PixtralTower:
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self.config = config
        self.device = weights.device
        self.dtype = weights.activation_dtype
        self._patches = weights.tensor(f"{TOWER}patch_embed.proj.weight")
        self._first_norm = weights.tensor(f"{TOWER}pre_norm.weight")
        self._blocks = [_block(weights, f"{TOWER}blocks.{i}.", config) for i in range(config.depth)]
        self._merger = _Merger(config, weights) if config.merge > 1 else None
        self._projections = [
            (
                weights.tensor(f"{TOWER}merger.{name}.weight"),
                weights.tensor(f"{TOWER}merger.{name}.bias") if config.has_projector_bias else None,
            )
            for name in ("linear_1", "linear_2")
        ]

    @torch.inference_mode()
    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        """``patches`` (num_patches, patch_features) of one image, float32, on any device;
        ``grid``: 1, and the height and width in patches."""
        num_tiles, height, width = grid
        assert num_tiles == 1, "an image is whole"
        config = self.config
        places = PatchGrid.of(height, width, config.merge, self.device)
        hidden = linear(patches.to(self.device, self.dtype), self._patches.flatten(1))
        hidden = _norm(hidden, self._first_norm, config.norm_eps)
        head_dim = config.hidden_size // config.num_heads
        angles = rotary_angles(places, head_dim, config.rope_theta, takes_turns=True)
        for block in self._blocks:
            hidden = block(hidden, angles)
        if self._merger is not None:
            hidden = self._merger(hidden)
        first, second = self._projections
        return ImageEmbeddings(linear(gelu(linear(hidden, *first)), *second))


class _Merger:
    """The features of a row's patches become those of one patch."""

    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self._num_patches, self._eps = config.merge**2, config.merger_eps
        self._norm = weights.tensor(f"{TOWER}merger.norm.weight")
        self._weight = weights.tensor(f"{TOWER}merger.merging.weight")

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(num_patches, hidden_size) -> (num_rows, hidden_size). The weight has the patches of one
        feature after each other."""
        normed = _norm(hidden, self._norm, self._eps)
        by_row = normed.view(-1, self._num_patches, hidden.shape[1])
        return linear(by_row.transpose(1, 2).flatten(1), self._weight)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x, weight.shape, weight, eps)


def _block(weights: WeightSource, prefix: str, config: VisionConfig) -> Block:
    """Raises ``MissingTensorError``."""
    return Block(
        config=config,
        attention_norm=weights.tensor(f"{prefix}norm1.weight"),
        qkv=weights.tensor(f"{prefix}attn.qkv.weight"),
        output=weights.tensor(f"{prefix}attn.proj.weight"),
        mlp_norm=weights.tensor(f"{prefix}norm2.weight"),
        gate=weights.tensor(f"{prefix}mlp.gate_proj.weight"),
        up=weights.tensor(f"{prefix}mlp.up_proj.weight"),
        down=weights.tensor(f"{prefix}mlp.down_proj.weight"),
    )


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


@dataclass(frozen=True, slots=True)
class Windows:
    """Which patches see each other."""

    members: torch.Tensor
    """(num_windows, most_patches) int64: indices of patches, 0 where a window has fewer."""
    is_there: torch.Tensor
    """A tensor of that shape: whether there is such a patch."""
    places: torch.Tensor
    """(num_patches,) int64: where each patch is among ``members``, flattened."""

    @classmethod
    def of(cls, grid: PatchGrid, side: int) -> Windows:
        """``side``: of a window, in patches. Those at the lower and right edges are smaller."""
        num_columns = -(-grid.width // side)
        numbers = grid.rows // side * num_columns + grid.columns // side
        counts = torch.bincount(numbers)
        order = torch.argsort(numbers, stable=True)
        most = int(counts.max())
        first = torch.cumsum(counts, 0) - counts
        inside = torch.arange(len(order), device=order.device) - first[numbers[order]]
        flat = numbers[order] * most + inside
        members = torch.zeros(len(counts) * most, dtype=torch.int64, device=order.device)
        members[flat] = order
        is_there = torch.zeros_like(members, dtype=torch.bool)
        is_there[flat] = True
        places = torch.empty_like(order)
        places[order] = flat
        return cls(members.view(-1, most), is_there.view(-1, most), places)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedBlock:
    attention_norm: torch.Tensor
    qkv: Affine
    output: Affine
    mlp_norm: torch.Tensor
    gate: Affine
    up: Affine
    down: Affine
    num_heads: int

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        windows: Windows | None,
    ) -> torch.Tensor:
        """(num_patches, hidden_size); without ``windows`` every patch attends to every other."""
        qkv = self.qkv.project(_windowed_norm(hidden, self.attention_norm))
        queries, keys, values = qkv.view(len(hidden), 3, self.num_heads, -1).unbind(1)
        queries, keys = (
            rotate(heads.float(), *angles).to(values.dtype) for heads in (queries, keys)
        )
        attended = _attended(queries, keys, values, windows)
        hidden = hidden + self.output.project(attended.flatten(1))
        normed = _windowed_norm(hidden, self.mlp_norm)
        return hidden + self.down.project(silu(self.gate.project(normed)) * self.up.project(normed))


class WindowedTower:
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self.config = config
        self.device = weights.device
        self.dtype = weights.activation_dtype
        self._patches = weights.tensor(f"{TOWER}patch_embed.proj.weight")
        self._blocks = [
            _windowed_block(weights, f"blocks.{i}.", config) for i in range(config.depth)
        ]
        self._merger_norm = weights.tensor(f"{TOWER}merger.ln_q.weight")
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
        hidden = linear(patches.to(self.device, self.dtype), self._patches.flatten(1))
        angles = rotary_angles(places, config.hidden_size // config.num_heads, config.rope_theta)
        for index, block in enumerate(self._blocks):
            sees_all = index in config.full_attention_layers
            hidden = block(hidden, angles, None if sees_all else windows)
        up, down = self._merger
        merged = _windowed_norm(hidden, self._merger_norm).view(-1, config.merged_features)
        return ImageEmbeddings(down.project(gelu(up.project(merged))))


def _attended(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, windows: Windows | None
) -> torch.Tensor:
    """All (num_patches, num_heads, head_dim)."""
    if windows is None:
        queries, keys, values = (
            one.transpose(0, 1).unsqueeze(0) for one in (queries, keys, values)
        )
        whole = scaled_dot_product_attention(queries, keys, values)
        return whole.squeeze(0).transpose(0, 1)
    queries, keys, values = (
        one[windows.members].transpose(1, 2) for one in (queries, keys, values)
    )
    mask = windows.is_there[:, None, None, :]
    found = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return found.transpose(1, 2).flatten(0, 1)[windows.places]


def _windowed_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight.shape, weight, EPS)


def _windowed_block(weights: WeightSource, prefix: str, config: VisionConfig) -> WindowedBlock:
    return WindowedBlock(
        attention_norm=weights.tensor(f"{TOWER}{prefix}norm1.weight"),
        qkv=affine(weights, f"{prefix}attn.qkv"),
        output=affine(weights, f"{prefix}attn.proj"),
        mlp_norm=weights.tensor(f"{TOWER}{prefix}norm2.weight"),
        gate=affine(weights, f"{prefix}mlp.gate_proj"),
        up=affine(weights, f"{prefix}mlp.up_proj"),
        down=affine(weights, f"{prefix}mlp.down_proj"),
        num_heads=config.num_heads,
    )


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
