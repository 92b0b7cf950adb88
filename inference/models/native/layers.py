"""A layer's packed weights, and the struct that the native decoder reads them by."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from inference.models.layer_configs import (
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

Struct = TypeVar("Struct", bound=ctypes.Structure)


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
    """A Gated DeltaNet layer's tensors beside its projections, all float32. The layer's ``qkv`` is
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
    """A short convolution's tensors beside its projections, float32. The layer's ``qkv`` is both
    gates, then the values."""

    shape: ShortConvConfig
    weight: torch.Tensor
    """(kernel, channels)"""
    bias: torch.Tensor | None = None
    """(channels,)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLatent:
    """Latent attention's weights beside its projections. The layer's ``qkv`` is queries, or their
    compressed form, then the latent and its rotary key."""

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
    """Makes queries of their compressed form."""


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
        angles, has_state = layer.angles, layer.has_state
        structs[index] = struct_of(
            CLayer,
            layer,
            cosines=None if angles is None else angles.cosines,
            sines=None if angles is None else angles.sines,
            rotary_dim=0 if angles is None else 2 * angles.cosines.shape[1],
            cache_index=num_cached[has_state],
        )
        num_cached[has_state] += 1
    return structs


def struct_of(kind: type[Struct], *sources: object, **given: object) -> Struct:
    """A struct whose fields are ``given``, or the attributes of their names that the first source
    with one has. ``None`` is null or zero. It points at tensors, and keeps none alive."""
    struct = kind()
    for name, *_ in kind._fields_:
        if name in given:
            value = given[name]
        else:
            value = getattr(next(each for each in sources if hasattr(each, name)), name)
        if value is not None:
            setattr(struct, name, _as_field(value))
    return struct


def _as_field(value: object) -> object:
    match value:
        case torch.Tensor():
            return pointer(value, torch.float32)
        case PackedLinear():
            return linear_struct(value)
        case list() | tuple():
            return projection_struct(value)
        case NativeNorm():
            return struct_of(CNorm, value)
        case NativeExperts():
            return ctypes.pointer(_experts_struct(value))
        case NativeDelta():
            return ctypes.pointer(struct_of(CDeltaNet, value, value.shape))
        case NativeConv():
            return ctypes.pointer(struct_of(CShortConv, value, value.shape))
        case MambaVectors():
            own = struct_of(CMamba, value, value.shape, dt_bias=value.step_bias)
            return ctypes.pointer(own)
        case NativeLatent():
            return ctypes.pointer(struct_of(CLatent, value, value.shape))
        case NativeJoin():
            norms = {"embedding": value.embedding_norm, "hidden": value.hidden_norm}
            return ctypes.pointer(struct_of(CJoin, value, **norms))
    return value


def _experts_struct(experts: NativeExperts) -> CExperts:
    config = experts.config
    has_shared = config.shared_intermediate_size is not None
    projections = CProjection * (config.num_experts + has_shared)
    return struct_of(
        CExperts,
        experts,
        config,
        per_token=config.experts_per_token,
        intermediate_size=max(config.intermediate_size, config.shared_intermediate_size or 0),
        scoring=SCORINGS[config.scoring],
        has_shared=has_shared,
        gate_up=projections(*map(projection_struct, experts.gate_up)),
        down=projections(*map(projection_struct, experts.down)),
    )
