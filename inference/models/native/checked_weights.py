"""The structs of a model's packed weights, checked before C++ gets a pointer, because it indexes
without looking. ``structs`` checks dtypes and contiguity. The C++ side reports how many bytes a
packed weight takes, so that there is no second table of formats."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from inference.models.config import ModelConfig
from inference.models.errors import UnfitWeightsError
from inference.models.layer_configs import Scoring
from inference.models.native.layers import (
    Angles,
    NativeExperts,
    NativeJoin,
    NativeLatent,
    NativeLayer,
    NativeNorm,
)
from inference.models.native.packing import Format, PackedLinear
from inference.models.native.structs import (
    MAX_PARTS,
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
    struct_of,
)

Shape = tuple[int, ...]
Fields = dict[str, object]
VECTORS: dict[type, dict[str, tuple[str, ...]]] = {
    CDeltaNet: {
        "conv_weight": ("conv_kernel", "conv_channels"),
        "decay_rate": ("num_value_heads",),
        "dt_bias": ("num_value_heads",),
        "norm": ("value_head_dim",),
    },
    CShortConv: {"weight": ("kernel", "channels"), "bias": ("channels",)},
    CMamba: {
        "conv_weight": ("conv_kernel", "conv_channels"),
        "conv_bias": ("conv_channels",),
        "decay_rate": ("num_heads",),
        "step_bias": ("num_heads",),
        "skip": ("num_heads",),
        "norm": ("features",),
    },
    CLatent: {"query_norm": ("query_rank",), "latent_norm": ("kv_rank",)},
    CExperts: {"choice_bias": ("num_experts",)},
}
"""The shapes of a struct's tensors, as attributes of its config."""
SCORINGS: dict[Scoring, int] = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2}
"""``Scoring`` of model.h."""


class CheckedWeights:
    """The structs keep no tensors alive. Methods raise ``UnfitWeightsError``; ``None`` is null."""

    def __init__(self, library: ctypes.CDLL, config: ModelConfig) -> None:
        if config.num_heads % config.num_kv_heads:
            raise UnfitWeightsError(
                f"{config.num_heads} heads for {config.num_kv_heads} of keys and values"
            )
        self._config = config
        self._num_bytes = library.helexa_linear_bytes
        self._num_bytes.restype = ctypes.c_int64
        self._num_bytes.argtypes = [ctypes.c_void_p]

    def table(
        self, name: str, table: PackedLinear | None, least_rows: int = 0
    ) -> ctypes.Structure | None:
        if table is None:
            return None
        if table.out_features < least_rows:
            raise UnfitWeightsError(f"{name} has {table.out_features} rows; {least_rows} are read")
        return self._linear(name, table, table.out_features, self._config.hidden_size)

    def norm(self, name: str, norm: NativeNorm | None) -> ctypes.Structure | None:
        if norm is None:
            return None
        shape = (self._config.hidden_size,)
        return CNorm(
            weight=_vector(f"{name} norm", norm.weight, shape),
            bias=_vector(f"{name} norm's bias", norm.bias, shape),
        )

    def join(self, join: NativeJoin | None) -> object:
        if join is None:
            return None
        hidden = self._config.hidden_size
        return ctypes.pointer(
            struct_of(
                CJoin,
                product=self._linear("the join", join.product, hidden, 2 * hidden),
                embedding=self.norm("the join: embedding", join.embedding_norm),
                hidden=self.norm("the join: hidden", join.hidden_norm),
            )
        )

    def layers(self, layers: Sequence[NativeLayer]) -> ctypes.Array[ctypes.Structure]:
        """Each layer's keys and values, or states, follow those of the layer of its kind before."""
        if len(layers) != self._config.num_layers:
            raise UnfitWeightsError(f"{len(layers)} layers for {self._config.num_layers}")
        structs = (CLayer * len(layers))()
        num_cached: Counter[bool] = Counter()
        for index, layer in enumerate(layers):
            structs[index] = self._layer(f"layer {index}", layer, num_cached[layer.has_state])
            num_cached[layer.has_state] += 1
        return structs

    def _layer(self, name: str, layer: NativeLayer, cache_index: int) -> ctypes.Structure:
        config, hidden = self._config, self._config.hidden_size
        mixer, row_width, mixed_width = self._mixer(name, layer)
        heads = (config.num_heads, config.num_kv_heads) if config.is_qk_norm_wide else (1, 1)
        return struct_of(
            CLayer,
            layer,
            **mixer,
            **self._mlp(name, layer),
            **_angles(name, layer.angles, config.head_dim),
            qkv=self._projection(f"{name}: qkv", layer.qkv, row_width, hidden),
            output=self._projection(f"{name}: output", layer.output, hidden, mixed_width),
            input_norm=self.norm(f"{name}: input", layer.input_norm),
            mixed_norm=self.norm(f"{name}: mixed", layer.mixed_norm),
            mlp_norm=self.norm(f"{name}: mlp", layer.mlp_norm),
            mlp_added_norm=self.norm(f"{name}: mlp_added", layer.mlp_added_norm),
            query_norm=_vector(
                f"{name}: query_norm", layer.query_norm, (heads[0] * config.head_dim,)
            ),
            key_norm=_vector(f"{name}: key_norm", layer.key_norm, (heads[1] * config.head_dim,)),
            cache_index=cache_index,
        )

    def _mixer(self, name: str, layer: NativeLayer) -> tuple[Fields, int, int]:
        """Returns also the widths of a projected row and of the mixer's output."""
        config = self._config
        if (delta := layer.delta) is not None:
            net = delta.shape
            width = net.conv_channels + net.value_features + 2 * net.num_value_heads
            return {"delta": _pointer(name, CDeltaNet, delta)}, width, net.value_features
        if (conv := layer.conv) is not None:
            channels = conv.shape.channels
            return {"conv": _pointer(name, CShortConv, conv)}, 3 * channels, channels
        if (mamba := layer.mamba) is not None:
            own = {"mamba": _pointer(name, CMamba, mamba)}
            return own, mamba.shape.projected_features, mamba.shape.features
        if layer.latent is not None:
            latent = layer.latent.shape
            first = latent.query_rank or config.num_heads * latent.query_dim
            own = {"latent": self._latent(name, layer.latent, layer.angles)}
            return own, first + latent.cached_features, config.num_heads * latent.value_dim
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        return {}, (1 + config.has_output_gate) * queries + 2 * keys, queries

    def _latent(self, name: str, latent: NativeLatent, angles: Angles | None) -> object:
        shape, config = latent.shape, self._config
        heads, rank, compressed = config.num_heads, shape.kv_rank, shape.query_rank
        if angles is None or 2 * angles.cosines.shape[1] != shape.rotary_dim:
            raise UnfitWeightsError(f"{name}: {shape.rotary_dim} features are rotated otherwise")
        if shape.cached_features != config.head_dim or config.num_kv_heads != 1:
            raise UnfitWeightsError(f"{name}: {shape.cached_features} features are not one head's")
        queries = None
        if compressed is not None:
            features = heads * shape.query_dim
            queries = self._projection(f"{name}: queries", latent.queries, features, compressed)
        values = heads * shape.value_dim
        return _pointer(
            name,
            CLatent,
            latent,
            queries=queries,
            to_keys=self._linear(f"{name}: to_keys", latent.to_keys, heads * rank, shape.plain_dim),
            to_values=self._linear(f"{name}: to_values", latent.to_values, values, rank),
        )

    def _mlp(self, name: str, layer: NativeLayer) -> Fields:
        if layer.experts is not None:
            return {
                "experts": self._experts(name, layer.experts),
                "gate_up": CProjection(),
                "down": CProjection(),
            }
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        ups = (1 + self._config.is_gated) * inner
        return {
            "gate_up": self._projection(f"{name}: gate_up", layer.gate_up, ups, hidden),
            "down": self._projection(f"{name}: down", layer.down, hidden, inner),
        }

    def _experts(self, name: str, experts: NativeExperts) -> object:
        config, hidden = experts.config, self._config.hidden_size
        shared = config.shared_intermediate_size
        widths = [config.intermediate_size] * config.num_experts
        widths += [] if shared is None else [shared]
        if not len(experts.gate_up) == len(experts.down) == len(widths):
            raise UnfitWeightsError(f"{name}: {len(experts.down)} experts for {len(widths)}")
        if experts.router.format is not Format.F32:
            raise UnfitWeightsError(f"{name}: the router is of {experts.router.format.name}")
        # The C++ side infers from the first what all of them read.
        chosen = experts.gate_up[: config.num_experts]
        if len({tuple(part.format for part in parts) for parts in chosen}) > 1:
            raise UnfitWeightsError(f"{name}: experts are stored in several formats")
        scores = config.num_experts + (shared is not None and config.gates_shared)
        gate_up, down = ((CProjection * len(widths))() for _ in range(2))
        for i, width in enumerate(widths):
            own = f"of expert {i}"
            ups = experts.gate_up[i]
            gate_up[i] = self._projection(f"{name}: gate_up {own}", ups, 2 * width, hidden)
            down[i] = self._projection(f"{name}: down {own}", experts.down[i], hidden, width)
        return _pointer(
            name,
            CExperts,
            experts,
            per_token=config.experts_per_token,
            intermediate_size=max(widths),
            scoring=SCORINGS[config.scoring],
            has_shared=shared is not None,
            router=self._linear(f"{name}: router", experts.router, scores, hidden),
            gate_up=gate_up,
            down=down,
        )

    def _projection(
        self, name: str, parts: Projection, out_features: int, in_features: int
    ) -> ctypes.Structure:
        total = sum(part.out_features for part in parts)
        if not 1 <= len(parts) <= MAX_PARTS or total != out_features:
            raise UnfitWeightsError(
                f"{name} has {len(parts)} parts with {total} outputs; {out_features} are read"
            )
        structs = [self._linear(name, part, part.out_features, in_features) for part in parts]
        return CProjection(num_parts=len(parts), parts=tuple(structs))

    def _linear(
        self, name: str, part: PackedLinear, out_features: int, in_features: int
    ) -> ctypes.Structure:
        found = part.out_features, part.in_features
        if found != (out_features, in_features):
            raise UnfitWeightsError(
                f"{name} is {found[0]} x {found[1]}; {out_features} x {in_features} are read"
            )
        struct = linear_struct(part)
        needed = self._num_bytes(ctypes.byref(struct))
        if part.num_bytes != needed or not part.panels.is_contiguous():
            raise UnfitWeightsError(f"{name} has {part.num_bytes} bytes; {needed} are read")
        _vector(f"{name}: bias", part.bias, (out_features,))
        return struct


def _pointer(name: str, kind: type[ctypes.Structure], source: Any, **given: object) -> object:
    config = source.config if isinstance(source, NativeExperts) else source.shape
    for own, sizes in VECTORS[kind].items():
        shape = tuple(getattr(config, size) for size in sizes)
        given[own] = _vector(f"{name}: {own}", getattr(source, own), shape)
    return ctypes.pointer(struct_of(kind, config, **given))


def _vector(name: str, tensor: torch.Tensor | None, shape: Shape) -> int | None:
    if tensor is not None and tuple(tensor.shape) != shape:
        raise UnfitWeightsError(f"{name} is {tuple(tensor.shape)}; {shape} are read")
    return pointer(tensor, torch.float32)


def _angles(name: str, angles: Angles | None, head_dim: int) -> Fields:
    if angles is None:
        return {"cosines": None, "sines": None, "rotary_dim": 0}
    cosines, shape = angles.cosines, tuple(angles.cosines.shape)
    if len(shape) != 2 or 2 * shape[1] > head_dim:
        shape = (len(cosines), head_dim // 2)
    return {
        "cosines": _vector(f"{name}: cosines", cosines, shape),
        "sines": _vector(f"{name}: sines", angles.sines, shape),
        "rotary_dim": 2 * shape[1],
    }
