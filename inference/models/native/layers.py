"""A layer's packed weights, of whose tensors ``checked_weights`` makes structs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.models.layer_configs import (
    DeltaConfig,
    ExpertsConfig,
    LatentConfig,
    ShortConvConfig,
)
from inference.models.layers.mamba import MambaVectors
from inference.models.native.packing import PackedLinear
from inference.models.native.structs import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeExperts:
    """``router`` float32: an output for each expert, and one for the shared expert's gate where it
    has one. ``gate_up`` and ``down`` by expert, the shared one last."""

    config: ExpertsConfig
    router: PackedLinear
    gate_up: Sequence[Projection]
    down: Sequence[Projection]
    choice_bias: torch.Tensor | None = None
    """(num_experts,) float32."""


@dataclass(frozen=True, slots=True)
class NativeNorm:
    """float32 (hidden_size,) each."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class NativeJoin:
    """The input of a layer that predicts further tokens: norms of a token's embedding and of the
    hidden row before it, and the product of the two, (hidden_size, 2 * hidden_size)."""

    embedding_norm: NativeNorm
    hidden_norm: NativeNorm
    product: PackedLinear


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines of each position, float32 (max_positions, rotary_dim / 2)."""

    cosines: torch.Tensor
    sines: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeDelta:
    """All float32. The layer's ``qkv`` is queries, keys, values, gates, betas and decays, each with
    all of its heads in order."""

    shape: DeltaConfig
    conv_weight: torch.Tensor
    """(kernel, channels)"""
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    """(value_heads,) each."""
    norm: torch.Tensor
    """(value_dim,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeConv:
    """All float32. The layer's ``qkv`` is both gates, then the values."""

    shape: ShortConvConfig
    weight: torch.Tensor
    """(kernel, channels)"""
    bias: torch.Tensor | None = None
    """(channels,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLatent:
    """The layer's ``qkv`` is queries, or their compressed form, then the latent and its rotary
    key."""

    shape: LatentConfig
    latent_norm: torch.Tensor
    """float32 (kv_rank,)"""
    to_keys: PackedLinear
    """(heads * kv_rank, plain_dim): makes each head's queries as wide as latents."""
    to_values: PackedLinear
    """(heads * value_dim, kv_rank)"""
    query_norm: torch.Tensor | None = None
    """float32 (query_rank,)"""
    queries: Projection = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLayer:
    """A part without a norm has ``None``. ``qkv`` of attention whose output is weighed has the
    gates first, then queries, keys and values."""

    qkv: Projection
    output: Projection
    gate_up: Projection = ()
    down: Projection = ()
    input_norm: NativeNorm | None = None
    mixed_norm: NativeNorm | None = None
    mlp_norm: NativeNorm | None = None
    mlp_added_norm: NativeNorm | None = None
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    """float32 (head_dim,), or as wide as all heads."""
    angles: Angles | None = None
    """``None``: no head is rotated."""
    window: int | None = None
    is_chunked: bool = False
    """Whether a row sees its chunk of ``window`` tokens, and not the last ``window`` of them."""
    grows_queries: bool = False
    experts: NativeExperts | None = None
    delta: NativeDelta | None = None
    conv: NativeConv | None = None
    mamba: MambaVectors | None = None
    latent: NativeLatent | None = None

    @property
    def has_state(self) -> bool:
        return any(kind is not None for kind in (self.delta, self.conv, self.mamba))
