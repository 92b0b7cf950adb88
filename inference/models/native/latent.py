"""A layer's latent attention, packed for the native decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from inference.models.config import ModelConfig
from inference.models.layers.attention_mixer import QUERIES, load_up
from inference.models.layers.configs import LatentConfig
from inference.models.native.layers import NativeLatent
from inference.models.native.packer import Packer
from inference.models.weights.lazy import LazyWeight, lazy
from inference.models.weights.stored import DenseWeight
from inference.models.weights.weight_source import WeightSource


def load_latent(
    config: ModelConfig, weights: WeightSource, index: int, packer: Packer
) -> NativeLatent:
    shape, prefix = config.latent, f"model.layers.{index}."
    assert shape is not None, "its layers are latent"
    own = f"{prefix}self_attn."

    def vector(name: str) -> torch.Tensor:
        return weights.tensor(f"{own}{name}.weight").float().contiguous()

    is_compressed = shape.query_rank is not None
    queries = weights.stored_parts(prefix + QUERIES) if is_compressed else ()
    to_keys, to_values = _up(config, shape, weights, index)
    return NativeLatent(
        shape=shape,
        latent_norm=vector("kv_a_layernorm"),
        to_keys=packer.pack(to_keys),
        to_values=packer.pack(to_values),
        query_norm=vector("q_a_layernorm") if is_compressed else None,
        queries=[packer.pack(part) for part in queries],
    )


def _up(
    config: ModelConfig, shape: LatentConfig, weights: WeightSource, index: int
) -> tuple[LazyWeight, LazyWeight]:
    """(heads * kv_rank, plain_dim) and (heads * value_dim, kv_rank): as files hold them where they
    are apart. In one weight the first is across its rows, and is made dense."""
    own = f"model.layers.{index}.self_attn."
    if shape.is_up_split:
        return _alone(weights, f"{own}k_b_proj"), _alone(weights, f"{own}v_b_proj")
    plain = load_up(config, weights, index)[:, : shape.plain_dim].float()
    to_keys = plain.transpose(1, 2).reshape(-1, shape.plain_dim)
    rows = torch.arange(config.num_heads * shape.up_features).view(config.num_heads, -1)
    both = _alone(weights, f"{own}kv_b_proj")
    return lazy(DenseWeight(weight=to_keys)), _some(both, rows[:, shape.plain_dim :].flatten())


def _alone(weights: WeightSource, name: str) -> LazyWeight:
    parts: Sequence[LazyWeight] = weights.stored_parts(name)
    assert len(parts) == 1 and len(parts[0].readers) == 1, "one weight is stored in one way"
    return parts[0]


def _some(weight: LazyWeight, rows: torch.Tensor) -> LazyWeight:
    """The rows of ``weight`` at these places."""
    (reader,) = weight.readers
    order = rows.numpy() if reader.order is None else reader.order[rows.numpy()]
    return replace(weight, readers=[replace(reader, num_rows=len(order), order=order)])
