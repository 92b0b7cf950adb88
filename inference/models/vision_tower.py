"""A vision tower on torch's operators: from the patches of an image to rows of a decoder.

    patches ─▶ embedded (+ positions) (─▶ norm) ─▶ block 0 ─▶ … ─▶ block n (─▶ norm) ─▶ projector

qwen3_vl     positions; 4 patches joined, an MLP; mergers of some blocks' output (deepstack)
qwen2_5_vl   all but a few blocks within windows; a norm, 4 patches joined, an MLP
gemma3       positions, last norm; patches averaged, a norm, a projection
idefics3     positions, last norm; patches joined, a projection; tile after tile
pixtral      first norm; 4 patches merged by a projection of their own, an MLP

Patches come in the order in which they are merged: the four of one row of the decoder together.

    merge 2:   0 1 4 5
               2 3 6 7

SigLIP: Zhai et al. 2023, arXiv:2303.15343; Gemma Team 2025, arXiv:2503.19786; Laurençon et al.
2024, arXiv:2408.12637. Qwen2.5-VL: Bai et al. 2025, arXiv:2502.13923. Qwen3-VL: Bai et al. 2025,
arXiv:2511.21631. Pixtral: Agrawal et al. 2024, arXiv:2410.07073."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import (
    gelu,
    layer_norm,
    linear,
    rms_norm,
    scaled_dot_product_attention,
    silu,
)

from inference.models.families.tower import TOWER
from inference.models.layers.rope import rotate
from inference.models.step_input import ImageEmbeddings
from inference.models.vision_config import TowerKind, VisionConfig
from inference.models.weight_source import WeightSource

EPS = 1e-6
Activation = Callable[[torch.Tensor], torch.Tensor]


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
    """(side**2, hidden_size), corners on corners -> (num_patches, hidden_size) float32."""
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
    """The place before, the one after, and how far towards the latter."""
    place = index.float() * (side - 1) / max(size - 1, 1)
    before = place.floor()
    first = before.long()
    return first, (first + 1).clamp(max=side - 1), place - before


def rotary_angles(
    places: PatchGrid, head_dim: int, theta: float, *, takes_turns: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """For ``rope.rotate``: (num_patches, 1, head_dim) float32, quarters of pairs turning with row
    and column in turn. ``takes_turns``: each has every other frequency."""
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


@dataclass(frozen=True, slots=True)
class Affine:
    """A norm without a bias has no mean."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float = EPS

    def project(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return rms_norm(x, self.weight.shape, self.weight, self.eps)
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Windows:
    members: torch.Tensor
    """(num_windows, most_patches) int64: indices of patches, 0 where a window has fewer."""
    is_there: torch.Tensor
    """(num_windows, most_patches) bool: whether there is such a patch."""
    places: torch.Tensor
    """(num_patches,) int64: each patch's place among ``members``, flattened."""

    @classmethod
    def of(cls, grid: PatchGrid, side: int) -> Windows:
        """``side`` in patches. Windows at the lower and right edges are smaller."""
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
class Block:
    attention_norm: Affine
    qkv: Affine
    output: Affine
    mlp_norm: Affine
    gate: Affine | None
    up: Affine
    down: Affine
    num_heads: int
    activation: Activation

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None = None,
        windows: Windows | None = None,
    ) -> torch.Tensor:
        """(num_patches, hidden_size); without ``windows`` all attend to each other."""
        qkv = self.qkv.project(self.attention_norm.norm(hidden))
        queries, keys, values = qkv.view(len(hidden), 3, self.num_heads, -1).unbind(1)
        if angles is not None:
            queries, keys = (
                rotate(heads.float(), *angles).to(values.dtype) for heads in (queries, keys)
            )
        attended = _attended(queries, keys, values, windows)
        hidden = hidden + self.output.project(attended.flatten(1))
        normed = self.mlp_norm.norm(hidden)
        inner = self.up.project(normed)
        if self.gate is None:
            return hidden + self.down.project(self.activation(inner))
        return hidden + self.down.project(self.activation(self.gate.project(normed)) * inner)


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


def affine(weights: WeightSource, name: str, eps: float = EPS, *, has_bias: bool = True) -> Affine:
    bias = weights.tensor(f"{TOWER}{name}.bias") if has_bias else None
    return Affine(weights.tensor(f"{TOWER}{name}.weight"), bias, eps)


def load_block(weights: WeightSource, prefix: str, config: VisionConfig) -> Block:
    """Pixtral's blocks have no biases."""
    is_gated, has_bias = config.is_gated, config.kind != "pixtral"
    is_silu = config.kind == "qwen2_5_vl" or config.activation == "silu"

    def norm(name: str) -> Affine:
        return affine(weights, prefix + name, config.norm_eps, has_bias=not is_gated)

    def projection(name: str) -> Affine:
        return affine(weights, prefix + name, has_bias=has_bias)

    return Block(
        attention_norm=norm("norm1"),
        qkv=projection("attn.qkv"),
        output=projection("attn.proj"),
        mlp_norm=norm("norm2"),
        gate=projection("mlp.gate_proj") if is_gated else None,
        up=projection("mlp.up_proj" if is_gated else "mlp.linear_fc1"),
        down=projection("mlp.down_proj" if is_gated else "mlp.linear_fc2"),
        num_heads=config.num_heads,
        activation=(silu if is_silu else gelu) if is_gated else partial(gelu, approximate="tanh"),
    )


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
        after tile; ``grid``: the tiles, and the height and width of each in patches."""
        num_tiles, height, width = grid
        assert num_tiles == 1 or self.config.kind == "idefics3", "other images are whole"
        deepstack: list[torch.Tensor] = []
        rows = [self._rows(tile, height, width, deepstack) for tile in patches.chunk(num_tiles)]
        return ImageEmbeddings(torch.cat(rows), tuple(deepstack))

    def _rows(
        self, patches: torch.Tensor, height: int, width: int, deepstack: list[torch.Tensor]
    ) -> torch.Tensor:
        """(num_rows, out_hidden_size) of one tile."""
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
        if not self.config.image_px:
            return interpolated(table, places).to(self.dtype)
        assert places.height * places.width <= len(table), "all tiles are of one size"
        return table[places.rows * places.width + places.columns]


def build_tower(config: VisionConfig | None, weights: WeightSource) -> Tower | None:
    """Raises ``MissingTensorError``."""
    return None if config is None else Tower(config, weights)
