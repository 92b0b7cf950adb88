"""Turns a layer's projection into rotated heads and writes keys and values, by torch's
operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import rms_norm

from inference.models.cache.paged_kv import LayerKV
from inference.models.config import ModelConfig
from inference.models.layers.rope import RopeTable, rotate_heads
from inference.models.step_input import DeviceStep


class AttentionWeights(Protocol):
    """A layer's own weights between its projections."""

    @property
    def query_norm(self) -> torch.Tensor | None: ...

    @property
    def key_norm(self) -> torch.Tensor | None: ...

    @property
    def query_scale(self) -> float:
        """Multiplies rotated queries, beyond one over the root of their width."""
        ...

    @property
    def sinks(self) -> torch.Tensor | None:
        """(heads,) scores that take weight from the context and add nothing."""
        ...


@dataclass(frozen=True, slots=True)
class RotatedHeads:
    """(num_rows, heads, head_dim) queries, and keys and values with heads of their own: ``None``
    from a kernel that only writes those."""

    queries: torch.Tensor
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None


class Rotation(Protocol):
    def __call__(
        self, weights: AttentionWeights, qkv: torch.Tensor, layer_kv: LayerKV
    ) -> RotatedHeads:
        """Takes a layer's projection, (num_rows, features), apart. Writes the rows' rotated keys,
        and values."""
        ...


RotationFactory = Callable[[ModelConfig, RopeTable, DeviceStep], Rotation]
"""Prepares a step once for all layers of a kind."""


def torch_rotation(config: ModelConfig, rope: RopeTable, step: DeviceStep) -> Rotation:
    """Returns the rotation for all layers of a step that share ``rope``."""
    angles = _angles(rope, step) if rope.rotary_dim else None

    def rotate_and_write(
        weights: AttentionWeights, qkv: torch.Tensor, layer_kv: LayerKV
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
    """Queries and keys, (num_tokens, num_heads + num_kv_heads, head_dim), and values.

    qkv heads   [ queries .......... | keys ........ | values ...... ]
                0            num_heads       + num_kv_heads  + num_kv_heads
    """
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, config.head_dim)
    rotated, values = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
    return rotated, values


def _normed(config: ModelConfig, weights: AttentionWeights, heads: torch.Tensor) -> torch.Tensor:
    """The heads of queries and keys behind their norms, where the layer has some."""
    if weights.query_norm is None or weights.key_norm is None:
        return heads
    queries, keys = torch.split(heads, [config.num_heads, config.num_kv_heads], dim=1)
    eps = config.rms_norm_eps
    normed = _norm(queries, weights.query_norm, eps), _norm(keys, weights.key_norm, eps)
    return torch.cat(normed, dim=1)


def _norm(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each head, or of all together where ``weight`` is as wide as they are."""
    if len(weight) == heads.shape[-1]:
        return rms_norm(heads, weight.shape, weight, eps)
    return rms_norm(heads.flatten(1), weight.shape, weight, eps).view(heads.shape)
