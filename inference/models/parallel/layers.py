"""A rank's layers: what each computes is its part of a sum, and the sum is what the residual stream
gets. A layer has two, after its mixer and after its MLP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from inference.models.config import ModelConfig
from inference.models.decoder import DecoderLayer, LoneLayer, Mixer, Mlp
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.parallel.group import RankGroup
from inference.models.parallel.shares import kv_replicas
from inference.models.step import Step
from inference.models.weights.weight_source import Linear


class SummedMixer:
    def __init__(self, part: Mixer, group: RankGroup) -> None:
        self._part = part
        self._group = group

    def __call__(self, rows: torch.Tensor, step: Step, layer_cache: Any) -> torch.Tensor:
        return self._group.sum(self._part(rows, step, layer_cache))


class SummedMlp:
    def __init__(self, part: Mlp, group: RankGroup) -> None:
        self._part = part
        self._group = group

    def __call__(self, rows: torch.Tensor, step: Step) -> torch.Tensor:
        return self._group.sum(self._part(rows, step))


class WideNormedQKV:
    """A projection to queries, keys and values whose first two are normed over all ranks' heads.

    It makes one sum for the rows that decode and one for prompts', whatever kernel computes the
    product: each rank times its own, and ranks that chose differently must not wait for sums that
    another does not make."""

    is_phaseless = False

    def __init__(self, mixer: AttentionMixer, config: ModelConfig, group: RankGroup) -> None:
        """``config``: of the whole model."""
        assert mixer.query_norm is not None and mixer.key_norm is not None
        self._qkv = mixer.qkv
        self._norms = mixer.query_norm, mixer.key_norm
        self._eps = config.rms_norm_eps
        self._group = group
        replicas = kv_replicas(config, group.num_ranks)
        self._features = (
            config.num_heads * config.head_dim,
            replicas * config.num_kv_heads * config.head_dim,
        )
        self.in_features = mixer.qkv.in_features
        self.out_features = mixer.qkv.out_features

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self._normed(self._qkv.decode(x))

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        return self._normed(self._qkv.prefill(x))

    def _normed(self, qkv: torch.Tensor) -> torch.Tensor:
        widths = [len(norm) for norm in self._norms]
        *heads, values = torch.split(qkv, [*widths, qkv.shape[1] - sum(widths)], dim=1)
        squares = torch.stack([part.float().square().sum(dim=1) for part in heads], dim=1)
        means = self._group.sum(squares) / torch.tensor(self._features, device=qkv.device)
        scales = torch.rsqrt(means + self._eps).unsqueeze(2).unbind(1)
        normed = [
            (part.float() * scale).to(qkv.dtype) * norm
            for part, scale, norm in zip(heads, scales, self._norms, strict=True)
        ]
        return torch.cat((*normed, values), dim=1)


def spread(layer: DecoderLayer | LoneLayer, config: ModelConfig, group: RankGroup) -> DecoderLayer:
    """``layer``, of a rank's weights; ``config`` of the whole model."""
    assert isinstance(layer, DecoderLayer), "others come with Mamba-2, which is not split"
    mixer = layer.mixer
    if isinstance(mixer, AttentionMixer) and config.qk_norm and config.is_qk_norm_wide:
        qkv: Linear = WideNormedQKV(mixer, config, group)
        mixer = replace(mixer, qkv=qkv, query_norm=None, key_norm=None)
    return replace(layer, mixer=SummedMixer(mixer, group), mlp=SummedMlp(layer.mlp, group))
