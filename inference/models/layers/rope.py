"""Rotary position embedding, Su et al. 2021, arXiv:2104.09864, under the scalings that models use.

The first ``rotary_dim`` elements of a head are rotated: ``i`` with ``i + rotary_dim / 2``, as most
models of Hugging Face have it, or interleaved, ``2i`` with ``2i + 1``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import rms_norm

from inference.models.config import MixerKind, ModelConfig, RopeScaling
from inference.models.device_step import DeviceStep
from inference.models.paged_kv import LayerKV
from inference.models.vision_config import VisionConfig

if TYPE_CHECKING:
    from inference.models.layers.attention_mixer import AttentionMixer

POSITIONS_MULTIPLE = 64
"""Tables end where a block does: a block's slots all have angles, also those past the context."""


@dataclass(frozen=True)
class RopeTable:
    """(num_positions, rotary_dim) float32; sines of each pair's first negated for ``rotate``."""

    cosines: torch.Tensor
    sines: torch.Tensor
    is_interleaved: bool = False
    axes: torch.Tensor | None = None
    """(rotary_dim,) int64: whether a feature turns with a row's time 0, height 1 or width 2."""

    @property
    def rotary_dim(self) -> int:
        return self.cosines.shape[1]

    @property
    def num_positions(self) -> int:
        return self.cosines.shape[0]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(num_tokens,) int64 -> cosines and sines, each (num_tokens, 1, rotary_dim)."""
        cosines = self.cosines.index_select(0, positions)
        sines = self.sines.index_select(0, positions)
        return cosines.unsqueeze(1), sines.unsqueeze(1)

    def at_places(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for (3, num_tokens): time, height and width of each."""
        assert self.axes is not None, "the model accepts no images"
        of_features = places.index_select(0, self.axes).t()
        cosines, sines = (table.gather(0, of_features) for table in (self.cosines, self.sines))
        return cosines.unsqueeze(1), sines.unsqueeze(1)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cosines, torch.cat((second, first), dim=-1), sines)


def rotate_heads(
    heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, *, is_interleaved: bool = False
) -> torch.Tensor:
    """(num_tokens, heads, head_dim), of which the angles' width is rotated."""
    rotary_dim = cosines.shape[-1]
    if rotary_dim < heads.shape[-1]:
        rotated, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
        rotated = rotate_heads(rotated, cosines, sines, is_interleaved=is_interleaved)
        return torch.cat((rotated, rest.to(rotated.dtype)), dim=-1)
    if not is_interleaved:
        return rotate(heads, cosines, sines)
    swapped = heads.view(*heads.shape[:-1], -1, 2).flip(-1).flatten(-2)
    return torch.addcmul(heads * cosines, swapped, sines)


def rope_table(
    config: ModelConfig,
    num_positions: int,
    device: torch.device,
    kind: MixerKind = "attention",
) -> RopeTable:
    frequencies, magnitude = _frequencies(config, kind, num_positions)
    num_positions = -(-num_positions // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    cosines, sines = angles.cos() * magnitude, angles.sin() * magnitude
    if config.is_rope_interleaved:
        return RopeTable(
            cosines.repeat_interleave(2, dim=-1).to(device),
            torch.stack((-sines, sines), dim=-1).flatten(-2).to(device),
            is_interleaved=True,
        )
    return RopeTable(
        torch.cat((cosines, cosines), dim=-1).to(device),
        torch.cat((-sines, sines), dim=-1).to(device),
        axes=_axes(config.vision, len(frequencies), device),
    )


def growth_table(
    config: ModelConfig, num_positions: int, device: torch.device
) -> torch.Tensor | None:
    """(num_positions,) float32 factors of queries."""
    growth = config.query_growth
    if growth is None:
        return None
    times = (torch.arange(num_positions) + growth.offset) // growth.positions
    return (1 + growth.beta * torch.log1p(times.float())).to(device)


def _axes(
    vision: VisionConfig | None, num_frequencies: int, device: torch.device
) -> torch.Tensor | None:
    """Sections 4 2 1 of time, height and width: t h w t h t t interleaved, else t t t t h h w."""
    if vision is None or vision.mrope_section is None:
        return None
    if not vision.is_mrope_interleaved:
        sections = torch.tensor(vision.mrope_section, device=device)
        return torch.arange(3, device=device).repeat_interleave(sections).repeat(2)
    axes = torch.zeros(num_frequencies, dtype=torch.int64, device=device)
    for axis in (1, 2):
        axes[axis : 3 * vision.mrope_section[axis] : 3] = axis
    return axes.repeat(2)


def _frequencies(
    config: ModelConfig, kind: MixerKind, num_positions: int
) -> tuple[torch.Tensor, float]:
    """(rotary_dim / 2,) radians per position, and what cosines and sines are multiplied by."""
    if kind == "unrotated":
        return torch.empty(0), 1.0
    theta, scaling = config.rope_theta, config.rope_scaling
    if kind == "sliding" and config.sliding_rope_theta is not None:
        theta, scaling = config.sliding_rope_theta, None
    rotary_dim = config.rotary_dim or config.head_dim
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    plain = 1.0 / theta**exponents
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if scaling.kind == "longrope":
        return _longrope(plain, scaling, num_positions)
    return _yarn(plain, scaling, theta)


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / plain
    longest_kept = scaling.original_max_positions / scaling.high_freq_factor
    shortest_stretched = scaling.original_max_positions / scaling.low_freq_factor
    blend = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - blend) * plain / scaling.factor + blend * plain
    stretched = torch.where(wavelengths > shortest_stretched, plain / scaling.factor, blended)
    return torch.where(wavelengths < longest_kept, plain, stretched)


def _longrope(
    plain: torch.Tensor, scaling: RopeScaling, num_positions: int
) -> tuple[torch.Tensor, float]:
    """arXiv:2402.13753. By the longest context offered: keys in blocks cannot be rotated again."""
    is_long = num_positions > scaling.original_max_positions
    divisors = torch.tensor(scaling.long_divisors if is_long else scaling.short_divisors)
    magnitude = scaling.attention_factor
    if magnitude is None:
        stretch = math.log(max(scaling.factor, 1.0)) / math.log(scaling.original_max_positions)
        magnitude = math.sqrt(1 + stretch)
    return plain / divisors, magnitude


def _yarn(plain: torch.Tensor, scaling: RopeScaling, theta: float) -> tuple[torch.Tensor, float]:
    """Peng et al. 2023, arXiv:2309.00071, section 3.2."""

    rotary_dim = 2 * len(plain)

    def dimension_that_turns(num_turns: float) -> float:
        ratio = scaling.original_max_positions / (num_turns * 2 * math.pi)
        return rotary_dim * math.log(ratio) / (2 * math.log(theta))

    low, high = map(dimension_that_turns, (scaling.beta_fast, scaling.beta_slow))
    if scaling.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = max(high - low, 0.001)
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    frequencies = plain / scaling.factor * ramp + plain * (1 - ramp)
    magnitude = scaling.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return frequencies, magnitude


@dataclass(frozen=True, slots=True)
class RotatedHeads:
    """(num_rows, heads, head_dim); ``None`` from a kernel that only writes keys and values."""

    queries: torch.Tensor
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None


Rotation = Callable[["AttentionMixer", torch.Tensor, LayerKV], RotatedHeads]
"""Splits qkv (num_rows, features); writes the rows' rotated keys, and values."""

RotationFactory = Callable[[ModelConfig, RopeTable, DeviceStep], Rotation]
"""Prepares a step once for all layers of a kind."""


def torch_rotation(config: ModelConfig, rope: RopeTable, step: DeviceStep) -> Rotation:
    angles = _angles(rope, step) if rope.rotary_dim else None

    def rotate_and_write(
        weights: AttentionMixer, qkv: torch.Tensor, layer_kv: LayerKV
    ) -> RotatedHeads:
        rotated, values = _split(config, qkv)
        if not config.is_qk_norm_after_rotation:
            rotated = _normed(config, weights, rotated)
        if angles is not None:
            rotated = rotate_heads(rotated, *angles, is_interleaved=rope.is_interleaved)
        rotated = rotated.to(qkv.dtype)
        if config.is_qk_norm_after_rotation:
            rotated = _normed(config, weights, rotated)
        queries, keys = torch.split(rotated, [config.num_heads, config.num_kv_heads], dim=1)
        layer_kv.write(step.slots, keys, values)
        return RotatedHeads(queries, keys, values)

    return rotate_and_write


def _angles(rope: RopeTable, step: DeviceStep) -> tuple[torch.Tensor, torch.Tensor]:
    if step.images is None or step.images.rotary is None:
        return rope.at(step.positions)
    return rope.at_places(step.images.rotary)


def _split(config: ModelConfig, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, (num_tokens, num_heads + num_kv_heads, head_dim), and values."""
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, config.head_dim)
    rotated, values = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
    return rotated, values


def _normed(config: ModelConfig, weights: AttentionMixer, heads: torch.Tensor) -> torch.Tensor:
    if weights.query_norm is None or weights.key_norm is None:
        return heads
    queries, keys = torch.split(heads, [config.num_heads, config.num_kv_heads], dim=1)
    eps = config.rms_norm_eps
    normed = _norm(queries, weights.query_norm, eps), _norm(keys, weights.key_norm, eps)
    return torch.cat(normed, dim=1)


def _norm(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if len(weight) == heads.shape[-1]:
        return rms_norm(heads, weight.shape, weight, eps)
    return rms_norm(heads.flatten(1), weight.shape, weight, eps).view(heads.shape)
