"""The tower of Qwen2.5-VL: patches of one image to rows of the decoder.

    patches ─▶ embedded ─▶ block 0 ─▶ … ─▶ block n ─▶ merger ─▶ rows
                             └ within windows, but for a few blocks that see the whole image

Patches come in the order in which they are merged, as the image processor gives them. Bai et al.
2025, arXiv:2502.13923.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention, silu

from inference.models.families.tower import TOWER
from inference.models.layers.rope import rotate
from inference.models.vision.grid import PatchGrid, rotary_angles
from inference.models.vision.tower import EPS, Affine, ImageEmbeddings, affine
from inference.models.vision_config import VisionConfig
from inference.models.weights.weight_source import WeightSource


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
class Block:
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
        qkv = self.qkv.project(_norm(hidden, self.attention_norm))
        queries, keys, values = qkv.view(len(hidden), 3, self.num_heads, -1).unbind(1)
        queries, keys = (
            rotate(heads.float(), *angles).to(values.dtype) for heads in (queries, keys)
        )
        attended = _attended(queries, keys, values, windows)
        hidden = hidden + self.output.project(attended.flatten(1))
        normed = _norm(hidden, self.mlp_norm)
        return hidden + self.down.project(silu(self.gate.project(normed)) * self.up.project(normed))


class WindowedTower:
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self.config = config
        self.device = weights.device
        self.dtype = weights.activation_dtype
        self._patches = weights.tensor(f"{TOWER}patch_embed.proj.weight")
        self._blocks = [_block(weights, f"blocks.{i}.", config) for i in range(config.depth)]
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
        merged = _norm(hidden, self._merger_norm).view(-1, config.merged_features)
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


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight.shape, weight, EPS)


def _block(weights: WeightSource, prefix: str, config: VisionConfig) -> Block:
    return Block(
        attention_norm=weights.tensor(f"{TOWER}{prefix}norm1.weight"),
        qkv=affine(weights, f"{prefix}attn.qkv"),
        output=affine(weights, f"{prefix}attn.proj"),
        mlp_norm=weights.tensor(f"{TOWER}{prefix}norm2.weight"),
        gate=affine(weights, f"{prefix}mlp.gate_proj"),
        up=affine(weights, f"{prefix}mlp.up_proj"),
        down=affine(weights, f"{prefix}mlp.down_proj"),
        num_heads=config.num_heads,
    )
