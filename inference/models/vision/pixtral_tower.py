"""The tower of Pixtral and Mistral Small 3: patches of one image to rows of the decoder.

    patches ─▶ embedded ─▶ norm ─▶ block 0 ─▶ … ─▶ norm ─▶ merged ─▶ projected ─▶ rows
                                                    └ where several patches become a row

Patches come in the order in which they are merged. Agrawal et al. 2024, arXiv:2410.07073.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention, silu

from inference.models.families.tower import TOWER
from inference.models.layers.rope import rotate
from inference.models.vision.grid import PatchGrid, rotary_angles
from inference.models.vision.tower import ImageEmbeddings
from inference.models.vision_config import VisionConfig
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
