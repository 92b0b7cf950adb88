"""A layer's packed weights, and the struct that the native decoder reads them by."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.models.layers.configs import (
    DeltaConfig,
    ExpertsConfig,
    LatentConfig,
    Scoring,
    ShortConvConfig,
)
from inference.models.layers.mamba import MambaVectors
from inference.models.native.packing import PackedLinear
from inference.models.native.structs import (
    CDeltaNet,
    CExperts,
    CJoin,
    CLatent,
    CLayer,
    CMamba,
    CNorm,
    CProjection,
    CShortConv,
    Projection,
    linear_struct,
    pointer,
    projection_struct,
)

SCORINGS: dict[Scoring, int] = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2}
"""``Scoring`` of model.h."""


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
    """What comes before a layer that predicts further tokens: norms of a token's embedding and of
    the hidden row before it, and the product of the two, (hidden_size, 2 * hidden_size)."""

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
    """What a Gated DeltaNet layer has beside its projections, all float32. The layer's ``qkv`` is
    queries, keys, values, gates, betas and decays, each with all of its heads in order."""

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
    """What a short convolution has beside its projections, float32. The layer's ``qkv`` is both
    gates, then the values."""

    shape: ShortConvConfig
    weight: torch.Tensor
    """(kernel, channels)"""
    bias: torch.Tensor | None = None
    """(channels,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLatent:
    """What latent attention has beside its projections. The layer's ``qkv`` is queries, or what
    they are compressed to, then the latent and its rotary key."""

    shape: LatentConfig
    latent_norm: torch.Tensor
    """float32 (kv_rank,)"""
    to_keys: PackedLinear
    """(heads * kv_rank, plain_dim): what makes each head's queries as wide as latents."""
    to_values: PackedLinear
    """(heads * value_dim, kv_rank)"""
    query_norm: torch.Tensor | None = None
    """float32 (query_rank,)"""
    queries: Projection = ()
    """What makes queries of what they are compressed to."""


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
    """The norm of what the mixer adds."""
    mlp_norm: NativeNorm | None = None
    mlp_added_norm: NativeNorm | None = None
    """The norm of what the MLP adds."""
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    """float32 (head_dim,), or as wide as all heads."""
    angles: Angles | None = None
    """``None``: no head is rotated."""
    window: int | None = None
    is_chunked: bool = False
    """Whether a row sees its chunk of ``window`` tokens, and not the last ``window`` of them."""
    grows_queries: bool = False
    """Whether its queries are multiplied by the model's growth."""
    experts: NativeExperts | None = None
    """The experts that stand in place of ``gate_up`` and ``down``."""
    delta: NativeDelta | None = None
    conv: NativeConv | None = None
    mamba: MambaVectors | None = None
    """The vectors of a Mamba mixer in place of attention, of either kind."""
    latent: NativeLatent | None = None

    @property
    def has_state(self) -> bool:
        return any(kind is not None for kind in (self.delta, self.conv, self.mamba))


def layer_structs(layers: Sequence[NativeLayer]) -> ctypes.Array[CLayer]:
    """Each layer's keys and values, or states, follow those of the layer of its kind before."""
    structs = (CLayer * len(layers))()
    num_cached = {False: 0, True: 0}
    for index, layer in enumerate(layers):
        structs[index] = _layer_struct(layer, num_cached[layer.has_state])
        num_cached[layer.has_state] += 1
    return structs


def _layer_struct(layer: NativeLayer, cache_index: int) -> CLayer:
    experts = None if layer.experts is None else ctypes.pointer(_experts_struct(layer.experts))
    delta = None if layer.delta is None else ctypes.pointer(_delta_struct(layer.delta))
    angles = layer.angles
    return CLayer(
        qkv=projection_struct(layer.qkv),
        output=projection_struct(layer.output),
        gate_up=projection_struct(layer.gate_up),
        down=projection_struct(layer.down),
        input_norm=norm_struct(layer.input_norm),
        mixed_norm=norm_struct(layer.mixed_norm),
        mlp_norm=norm_struct(layer.mlp_norm),
        mlp_added_norm=norm_struct(layer.mlp_added_norm),
        query_norm=pointer(layer.query_norm, torch.float32),
        key_norm=pointer(layer.key_norm, torch.float32),
        cosines=None if angles is None else pointer(angles.cosines, torch.float32),
        sines=None if angles is None else pointer(angles.sines, torch.float32),
        experts=experts,
        delta=delta,
        conv=None if layer.conv is None else ctypes.pointer(_conv_struct(layer.conv)),
        mamba=None if layer.mamba is None else ctypes.pointer(_mamba_struct(layer.mamba)),
        latent=None if layer.latent is None else ctypes.pointer(_latent_struct(layer.latent)),
        rotary_dim=0 if angles is None else 2 * angles.cosines.shape[1],
        window=layer.window or 0,
        is_chunked=layer.is_chunked,
        grows_queries=layer.grows_queries,
        cache_index=cache_index,
    )


def norm_struct(norm: NativeNorm | None) -> CNorm:
    if norm is None:
        return CNorm()
    weight, bias = (pointer(tensor, torch.float32) for tensor in (norm.weight, norm.bias))
    return CNorm(weight=weight, bias=bias)


def join_struct(join: NativeJoin) -> CJoin:
    return CJoin(
        embedding=norm_struct(join.embedding_norm),
        hidden=norm_struct(join.hidden_norm),
        product=linear_struct(join.product),
    )


def _conv_struct(conv: NativeConv) -> CShortConv:
    shape = conv.shape
    return CShortConv(
        channels=shape.channels,
        kernel=shape.kernel,
        weight=pointer(conv.weight, torch.float32),
        bias=pointer(conv.bias, torch.float32),
    )


def _mamba_struct(mamba: MambaVectors) -> CMamba:
    shape = mamba.shape
    return CMamba(
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        num_groups=shape.num_groups,
        state_size=shape.state_size,
        conv_kernel=shape.conv_kernel,
        conv_weight=pointer(mamba.conv_weight, torch.float32),
        conv_bias=pointer(mamba.conv_bias, torch.float32),
        decay_rate=pointer(mamba.decay_rate, torch.float32),
        dt_bias=pointer(mamba.step_bias, torch.float32),
        skip=pointer(mamba.skip, torch.float32),
        norm=pointer(mamba.norm, torch.float32),
    )


def _latent_struct(latent: NativeLatent) -> CLatent:
    shape = latent.shape
    return CLatent(
        kv_rank=shape.kv_rank,
        rotary_dim=shape.rotary_dim,
        plain_dim=shape.plain_dim,
        value_dim=shape.value_dim,
        query_rank=shape.query_rank or 0,
        query_norm=pointer(latent.query_norm, torch.float32),
        latent_norm=pointer(latent.latent_norm, torch.float32),
        queries=projection_struct(latent.queries),
        to_keys=linear_struct(latent.to_keys),
        to_values=linear_struct(latent.to_values),
    )


def _delta_struct(delta: NativeDelta) -> CDeltaNet:
    shape = delta.shape
    return CDeltaNet(
        num_key_heads=shape.num_key_heads,
        num_value_heads=shape.num_value_heads,
        key_head_dim=shape.key_head_dim,
        value_head_dim=shape.value_head_dim,
        conv_kernel=shape.conv_kernel,
        are_value_heads_tiled=shape.are_value_heads_tiled,
        conv_weight=pointer(delta.conv_weight, torch.float32),
        decay_rate=pointer(delta.decay_rate, torch.float32),
        dt_bias=pointer(delta.dt_bias, torch.float32),
        norm=pointer(delta.norm, torch.float32),
    )


def _experts_struct(experts: NativeExperts) -> CExperts:
    config = experts.config
    has_shared = config.shared_intermediate_size is not None
    num_all = config.num_experts + has_shared
    projections = CProjection * num_all
    return CExperts(
        num_experts=config.num_experts,
        per_token=config.experts_per_token,
        intermediate_size=max(config.intermediate_size, config.shared_intermediate_size or 0),
        scoring=SCORINGS[config.scoring],
        normalizes=config.normalizes,
        has_shared=has_shared,
        weighs_inputs=config.weighs_inputs,
        num_groups=config.num_groups,
        groups_per_token=config.groups_per_token,
        group_experts=config.group_experts,
        weight_scale=config.weight_scale,
        choice_bias=pointer(experts.choice_bias, torch.float32),
        router=linear_struct(experts.router),
        gate_up=projections(*map(projection_struct, experts.gate_up)),
        down=projections(*map(projection_struct, experts.down)),
    )
