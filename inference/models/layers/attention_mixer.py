"""Attention as a layer's mixer: project, rotate, write keys and values, attend, project back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from inference.models.cache.paged_kv import LayerKV
from inference.models.config import MixerKind, ModelConfig
from inference.models.families.registry import family_of
from inference.models.layers.norms import head_norm_weights
from inference.models.step import Step
from inference.models.weights.weight_source import Linear, WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMixer:
    kind: MixerKind
    qkv: Linear
    output: Linear
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    query_scale: float = 1.0
    sinks: torch.Tensor | None = None
    gated_heads: tuple[int, int] | None = None
    """Number and width of the heads that come with a gate; ``None``: none do."""

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: LayerKV) -> torch.Tensor:
        """(num_rows, hidden_size) -> the same shape. Writes the rows' keys and values."""
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
    """(num_rows, features), as ``qkv`` would be without gates, and the gates.

    head 0 [ queries | gate ] head 1 [ queries | gate ] … | keys | values
    """
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
        query_scale=_query_scale(config),
        sinks=weights.tensor(prefix + names.sinks) if config.has_sinks else None,
        gated_heads=(config.num_heads, config.head_dim) if config.has_output_gate else None,
    )


def _query_scale(config: ModelConfig) -> float:
    if config.attention_scale is None:
        return 1.0
    return config.attention_scale * math.sqrt(config.head_dim)
