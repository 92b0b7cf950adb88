"""The tower of Qwen3-VL and Qwen3.5: patches of one image to rows of the decoder.

    patches ─▶ embedded + positions ─▶ block 0 ─▶ … ─▶ block n ─▶ merger ─▶ rows
                                         └──▶ deepstack merger ─▶ added after an early layer

Patches come in the order in which they are merged, as the image processor gives them: the four of
one row of the decoder after each other. Bai et al. 2025, arXiv:2511.21631.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from inference.models.families.tower import TOWER
from inference.models.layers.rope import rotate
from inference.models.vision.grid import PatchGrid, interpolated, rotary_angles
from inference.models.vision_config import VisionConfig
from inference.models.weights.weight_source import WeightSource

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class ImageEmbeddings:
    """The rows of an image, or a part of them, as a decoder takes them."""

    embeddings: torch.Tensor
    """(num_rows, hidden_size), instead of the token's own."""
    deepstack: tuple[torch.Tensor, ...] = ()
    """(num_rows, hidden_size) each: added after the first layer, the second, …"""

    def part(self, first: int, last: int) -> ImageEmbeddings:
        """A copy of rows ``[first, last)``."""
        return ImageEmbeddings(
            self.embeddings[first:last].clone(),
            tuple(rows[first:last].clone() for rows in self.deepstack),
        )

    def on(self, device: torch.device) -> ImageEmbeddings:
        deepstack = tuple(rows.to(device) for rows in self.deepstack)
        return ImageEmbeddings(self.embeddings.to(device), deepstack)

    @classmethod
    def joined(cls, parts: list[ImageEmbeddings]) -> ImageEmbeddings:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        by_layer = zip(*(part.deepstack for part in parts), strict=True)
        return cls(
            torch.cat([part.embeddings for part in parts]),
            tuple(torch.cat(rows) for rows in by_layer),
        )

    @property
    def num_bytes(self) -> int:
        return sum(rows.nbytes for rows in (self.embeddings, *self.deepstack))


@dataclass(frozen=True, slots=True)
class Affine:
    """A projection or a norm's scale, with its bias."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float = EPS
    """What a norm adds to the variance."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merger:
    norm: Affine
    up: Affine
    down: Affine
    merges_first: bool
    """Whether the norm is of merged patches."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(num_patches, hidden_size) -> (num_rows, out_hidden_size)."""
        merged = self.up.weight.shape[1]
        if self.merges_first:
            hidden = self.norm.norm(hidden.view(-1, merged))
        else:
            hidden = self.norm.norm(hidden).view(-1, merged)
        return self.down.project(gelu(self.up.project(hidden)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    attention_norm: Affine
    qkv: Affine
    output: Affine
    mlp_norm: Affine
    up: Affine
    down: Affine
    num_heads: int

    def __call__(
        self, hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """(num_patches, hidden_size); every patch of the image attends to every other. Without
        ``angles`` nothing is rotated."""
        num_patches = len(hidden)
        qkv = self.qkv.project(self.attention_norm.norm(hidden))
        queries, keys, values = qkv.view(num_patches, 3, self.num_heads, -1).unbind(1)
        if angles is not None:
            queries, keys = (
                rotate(heads.float(), *angles).to(values.dtype) for heads in (queries, keys)
            )
        queries, keys, values = (
            heads.transpose(0, 1).unsqueeze(0) for heads in (queries, keys, values)
        )
        attended = scaled_dot_product_attention(queries, keys, values)
        attended = attended.squeeze(0).transpose(0, 1).reshape(num_patches, -1)
        hidden = hidden + self.output.project(attended)
        inner = gelu(self.up.project(self.mlp_norm.norm(hidden)), approximate="tanh")
        return hidden + self.down.project(inner)


class VisionTower:
    def __init__(self, config: VisionConfig, weights: WeightSource) -> None:
        """Raises ``MissingTensorError``."""
        self.config = config
        self.device = weights.device
        self.dtype = weights.activation_dtype
        self._patches = affine(weights, "patch_embed.proj")
        self._positions = weights.tensor(f"{TOWER}pos_embed.weight")
        self._blocks = [load_block(weights, f"blocks.{i}.", config) for i in range(config.depth)]
        self._merger = _merger(weights, "merger.", merges_first=False)
        self._deepstack_mergers = {
            layer: _merger(weights, f"deepstack_merger_list.{index}.", merges_first=True)
            for index, layer in enumerate(config.deepstack_layers)
        }

    @torch.inference_mode()
    def __call__(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> ImageEmbeddings:
        """``patches`` (num_patches, patch_features) of one image, float32, on any device;
        ``grid``: time, height and width in patches."""
        time, height, width = grid
        assert time == 1, "an image is one frame"
        places = PatchGrid.of(height, width, self.config.merge, self.device)
        weight = self._patches.weight.flatten(1)
        hidden = linear(patches.to(self.device, self.dtype), weight, self._patches.bias)
        hidden = hidden + interpolated(self._positions, places).to(self.dtype)
        head_dim = self.config.hidden_size // self.config.num_heads
        angles = rotary_angles(places, head_dim, self.config.rope_theta)
        deepstack = []
        for index, block in enumerate(self._blocks):
            hidden = block(hidden, angles)
            if (merger := self._deepstack_mergers.get(index)) is not None:
                deepstack.append(merger(hidden))
        return ImageEmbeddings(self._merger(hidden), tuple(deepstack))


def affine(weights: WeightSource, name: str, eps: float = EPS) -> Affine:
    """Raises ``MissingTensorError``."""
    weight, bias = (weights.tensor(f"{TOWER}{name}.{kind}") for kind in ("weight", "bias"))
    return Affine(weight, bias, eps)


def _merger(weights: WeightSource, prefix: str, *, merges_first: bool) -> Merger:
    return Merger(
        norm=affine(weights, f"{prefix}norm"),
        up=affine(weights, f"{prefix}linear_fc1"),
        down=affine(weights, f"{prefix}linear_fc2"),
        merges_first=merges_first,
    )


def load_block(weights: WeightSource, prefix: str, config: VisionConfig) -> Block:
    """Raises ``MissingTensorError``."""
    return Block(
        attention_norm=affine(weights, f"{prefix}norm1", config.norm_eps),
        qkv=affine(weights, f"{prefix}attn.qkv"),
        output=affine(weights, f"{prefix}attn.proj"),
        mlp_norm=affine(weights, f"{prefix}norm2", config.norm_eps),
        up=affine(weights, f"{prefix}mlp.linear_fc1"),
        down=affine(weights, f"{prefix}mlp.linear_fc2"),
        num_heads=config.num_heads,
    )
