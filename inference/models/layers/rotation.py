"""From a layer's projection to rotated heads, with keys and values written: torch's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import rms_norm

from inference.models.batch import Batch
from inference.models.cache.paged_kv import LayerKV
from inference.models.config import ModelConfig
from inference.models.layers.rope import RopeTable, rotate_heads


class AttentionWeights(Protocol):
    """What a layer has of its own between its projections."""

    @property
    def query_norm(self) -> torch.Tensor | None: ...

    @property
    def key_norm(self) -> torch.Tensor | None: ...

    @property
    def query_scale(self) -> float:
        """What rotated queries are multiplied with, beyond one over the root of their width."""
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


RotationFactory = Callable[[ModelConfig, RopeTable, Batch], Rotation]
"""Prepares a step once for all layers of a kind."""


def torch_rotation(config: ModelConfig, rope: RopeTable, batch: Batch) -> Rotation:
    """For all layers of a step that share ``rope``."""
    angles = _angles(rope, batch) if rope.rotary_dim else None

    def rotate_and_write(
        weights: AttentionWeights, qkv: torch.Tensor, layer_kv: LayerKV
    ) -> RotatedHeads:
        rotated, values = _split(config, weights, qkv)
        if angles is not None:
            rotated = rotate_heads(rotated, *angles, is_interleaved=rope.is_interleaved)
        queries, keys = torch.split(
            rotated.to(qkv.dtype), [config.num_heads, config.num_kv_heads], dim=1
        )
        layer_kv.write(batch.slots, keys, values)
        return RotatedHeads(queries, keys, values)

    return rotate_and_write


def _angles(rope: RopeTable, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    if batch.images is None:
        return rope.at(batch.positions)
    return rope.at_places(batch.images.rotary)


def _split(
    config: ModelConfig, weights: AttentionWeights, qkv: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normed queries and keys, (num_tokens, num_heads + num_kv_heads, head_dim), and values.

    qkv heads   [ queries .......... | keys ........ | values ...... ]
                0            num_heads       + num_kv_heads  + num_kv_heads
    """
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, config.head_dim)
    rotated, values = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
    if weights.query_norm is None or weights.key_norm is None:
        return rotated, values
    queries, keys = torch.split(rotated, [num_heads, num_kv_heads], dim=1)
    eps = config.rms_norm_eps
    normed = _norm(queries, weights.query_norm, eps), _norm(keys, weights.key_norm, eps)
    return torch.cat(normed, dim=1), values


def _norm(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each head, or of all together where ``weight`` is as wide as they are."""
    if len(weight) == heads.shape[-1]:
        return rms_norm(heads, weight.shape, weight, eps)
    return rms_norm(heads.flatten(1), weight.shape, weight, eps).view(heads.shape)
