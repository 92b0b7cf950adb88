"""Attention and multi-head latent attention as a layer's mixer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.registry import family_of
from inference.models.layers.norms import head_norm_weights
from inference.models.layers.step import Step
from inference.models.paged_kv import LayerKV
from inference.models.weight_source import Linear, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMixer:
    kind: MixerKind
    qkv: Linear
    output: Linear
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    query_scale: float = 1.0
    """Multiplies rotated queries, beyond one over the root of their width."""
    sinks: torch.Tensor | None = None
    """(heads,) scores that take weight from the context and add nothing."""
    gated_heads: tuple[int, int] | None = None
    """(number, width) of heads that come with a gate; ``None``: none do."""

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: LayerKV) -> torch.Tensor:
        """Writes the rows' keys and values."""
        qkv = step.product(self.qkv, rows)
        if self.gated_heads is None:
            attended = step.attention(self.kind)(self, qkv, layer_cache)
        else:
            qkv, gate = _without_gate(qkv, *self.gated_heads)
            attended = step.attention(self.kind)(self, qkv, layer_cache) * gate.sigmoid()
        return step.product(self.output, attended)


def _without_gate(
    qkv: torch.Tensor, num_heads: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``qkv`` is head 0 (queries, gate), head 1 (queries, gate), …, keys, values."""
    num_gated = 2 * num_heads * head_dim
    queries, gate = qkv[:, :num_gated].view(-1, num_heads, 2, head_dim).unbind(2)
    return torch.cat((queries.flatten(1), qkv[:, num_gated:]), dim=1), gate.flatten(1)


def load_attention(config: ModelConfig, weights: WeightSource, index: int) -> AttentionMixer:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    query_norm, key_norm = head_norm_weights(config, weights, index) or (None, None)
    return AttentionMixer(
        kind=config.mixer_kinds[index],
        qkv=weights.linear(*(prefix + name for name in names.qkv)),
        output=weights.linear(prefix + names.output),
        query_norm=query_norm,
        key_norm=key_norm,
        query_scale=query_scale(config),
        sinks=weights.tensor(prefix + names.sinks) if config.has_sinks else None,
        gated_heads=(config.num_heads, config.head_dim) if config.has_output_gate else None,
    )


def query_scale(config: ModelConfig) -> float:
    """Scores' factor beyond one over the root of ``head_dim``."""
    if config.attention_scale is None:
        return 1.0
    return config.attention_scale * math.sqrt(config.head_dim)


QUERIES = "self_attn.q_b_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentMixer:
    first: Linear
    """Projects a row to its queries, compressed or not, then its latent and its rotary key."""
    cached_features: int
    num_heads: int
    queries: Linear | None
    query_norm: torch.Tensor | None
    latent_norm: torch.Tensor
    """(kv_rank,)"""
    up: torch.Tensor
    """(heads, plain_dim + value_dim, kv_rank)"""
    output: Linear
    eps: float

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: LayerKV) -> torch.Tensor:
        """Writes the rows' latents and keys."""
        projected = step.product(self.first, rows)
        queries = projected[:, : -self.cached_features]
        compressed = projected[:, -self.cached_features :]
        if self.queries is not None:
            assert self.query_norm is not None
            normed = rms_norm(queries, self.query_norm.shape, self.query_norm, self.eps)
            queries = step.product(self.queries, normed)
        queries = queries.reshape(len(rows), self.num_heads, -1)
        return step.product(self.output, step.latent()(self, queries, compressed, layer_cache))


def load_latent(config: ModelConfig, weights: WeightSource, index: int) -> LatentMixer:
    shape, names, prefix = config.latent, family_of(config).layer_names, f"model.layers.{index}."
    assert shape is not None, "its layers are latent"
    is_compressed = shape.query_rank is not None
    own = prefix + "self_attn."
    return LatentMixer(
        first=weights.linear(*(prefix + name for name in first_names(config))),
        cached_features=shape.cached_features,
        num_heads=config.num_heads,
        queries=weights.linear(prefix + QUERIES) if is_compressed else None,
        query_norm=weights.tensor(f"{own}q_a_layernorm.weight") if is_compressed else None,
        latent_norm=weights.tensor(f"{own}kv_a_layernorm.weight"),
        up=load_up(config, weights, index),
        output=weights.linear(prefix + names.output),
        eps=config.rms_norm_eps,
    )


def first_names(config: ModelConfig) -> tuple[str, str]:
    shape = config.latent
    assert shape is not None, "its layers are latent"
    queries = "q_proj" if shape.query_rank is None else "q_a_proj"
    return f"self_attn.{queries}", "self_attn.kv_a_proj_with_mqa"


def load_up(config: ModelConfig, weights: WeightSource, index: int) -> torch.Tensor:
    """(heads, plain_dim + value_dim, kv_rank). Raises ``MissingTensorError``."""
    shape, own = config.latent, f"model.layers.{index}.self_attn."
    assert shape is not None
    heads, rank = config.num_heads, shape.kv_rank
    if not shape.is_up_split:
        return weights.tensor(f"{own}kv_b_proj.weight").view(heads, shape.up_features, rank)
    to_keys = weights.tensor(f"{own}k_b_proj.weight").view(heads, rank, shape.plain_dim)
    to_values = weights.tensor(f"{own}v_b_proj.weight").view(heads, shape.value_dim, rank)
    return torch.cat((to_keys.transpose(1, 2), to_values), dim=1)
