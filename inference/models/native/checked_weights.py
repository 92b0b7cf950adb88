"""Whether a model's packed weights are as large as the C++ side will index them. It indexes without
looking, so everything it relies on is checked here, once, before it is given a pointer.

dtypes and contiguity are checked where pointers are made, in ``structs``. The C++ side reports how
many bytes a packed weight takes, so that there is no second table of formats.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch

from inference.models.config import ModelConfig
from inference.models.errors import UnfitWeightsError
from inference.models.native.layers import (
    Angles,
    NativeDelta,
    NativeExperts,
    NativeJoin,
    NativeLatent,
    NativeLayer,
    NativeNorm,
)
from inference.models.native.packing import Format, PackedLinear
from inference.models.native.structs import MAX_PARTS, Projection, linear_struct

Shape = tuple[int, ...]
Vector = tuple[str, torch.Tensor | None, Shape]
"""A tensor by its name, and the shape that it must have."""


class WeightCheck:
    """The check of one model. All methods raise ``UnfitWeightsError``, by the part's name."""

    def __init__(self, library: ctypes.CDLL, config: ModelConfig) -> None:
        self._config = config
        self._num_bytes = library.helexa_linear_bytes
        self._num_bytes.restype = ctypes.c_int64
        self._num_bytes.argtypes = [ctypes.c_void_p]

    def check(
        self,
        layers: Sequence[NativeLayer],
        final_norm: NativeNorm | None,
        embedding: PackedLinear | None,
        head: PackedLinear | None,
        join: NativeJoin | None = None,
    ) -> None:
        config = self._config
        if len(layers) != config.num_layers:
            raise UnfitWeightsError(f"{len(layers)} layers for {config.num_layers}")
        if config.num_heads % config.num_kv_heads:
            raise UnfitWeightsError(
                f"{config.num_heads} heads for {config.num_kv_heads} of keys and values"
            )
        if embedding is not None and embedding.out_features < config.vocab_size:
            raise UnfitWeightsError(
                f"the embedding has {embedding.out_features} rows; {config.vocab_size} are read"
            )
        for name, table in (("the embedding", embedding), ("the head", head)):
            if table is not None:
                self._linear(name, table, table.out_features, config.hidden_size)
        self._vectors("the final norm", self._norm_vectors("final", final_norm))
        if join is not None:
            self._join(join)
        for index, layer in enumerate(layers):
            self._layer(f"layer {index}", layer)

    def _join(self, join: NativeJoin) -> None:
        hidden = self._config.hidden_size
        self._linear("the join", join.product, hidden, 2 * hidden)
        self._vectors("the join", self._norm_vectors("embedding", join.embedding_norm))
        self._vectors("the join", self._norm_vectors("hidden", join.hidden_norm))

    def _layer(self, name: str, layer: NativeLayer) -> None:
        config, hidden = self._config, self._config.hidden_size
        row_width, mixed_width = self._mixer_widths(layer)
        if layer.latent is not None:
            self._latent(name, layer.latent, layer.angles)
        self._projection(f"{name}: qkv", layer.qkv, row_width, hidden)
        self._projection(f"{name}: output", layer.output, hidden, mixed_width)
        if layer.experts is not None:
            self._experts(name, layer.experts)
        else:
            inner = config.intermediate_size
            self._projection(
                f"{name}: gate_up", layer.gate_up, (1 + config.is_gated) * inner, hidden
            )
            self._projection(f"{name}: down", layer.down, hidden, inner)
        self._vectors(name, self._vectors_of(layer))

    def _mixer_widths(self, layer: NativeLayer) -> tuple[int, int]:
        """The widths of a projected row, and of the mixer's output."""
        config = self._config
        if layer.delta is not None:
            delta = layer.delta.shape
            both = delta.conv_channels + delta.value_features
            return both + 2 * delta.num_value_heads, delta.value_features
        if layer.conv is not None:
            return 3 * layer.conv.shape.channels, layer.conv.shape.channels
        if layer.mamba is not None:
            return layer.mamba.shape.projected_features, layer.mamba.shape.features
        if layer.latent is not None:
            latent = layer.latent.shape
            first = latent.query_rank or config.num_heads * latent.query_dim
            return first + latent.cached_features, config.num_heads * latent.value_dim
        queries = config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        return (1 + config.has_output_gate) * queries + 2 * keys, queries

    def _vectors_of(self, layer: NativeLayer) -> Iterator[Vector]:
        for name, norm in (
            ("input", layer.input_norm),
            ("mixed", layer.mixed_norm),
            ("mlp", layer.mlp_norm),
            ("mlp_added", layer.mlp_added_norm),
        ):
            yield from self._norm_vectors(name, norm)
        config = self._config
        heads = (config.num_heads, config.num_kv_heads) if config.is_qk_norm_wide else (1, 1)
        yield "query_norm", layer.query_norm, (heads[0] * config.head_dim,)
        yield "key_norm", layer.key_norm, (heads[1] * config.head_dim,)
        if layer.angles is not None:
            cosines, sines = layer.angles.cosines, layer.angles.sines
            yield "sines", sines, tuple(cosines.shape)
            if cosines.dim() != 2 or 2 * cosines.shape[1] > config.head_dim:
                yield "cosines", cosines, (len(cosines), config.head_dim // 2)
        if layer.delta is not None:
            yield from _delta_vectors(layer.delta)
        if layer.conv is not None:
            conv = layer.conv.shape
            yield "conv_weight", layer.conv.weight, (conv.kernel, conv.channels)
            yield "conv_bias", layer.conv.bias, (conv.channels,)
        if layer.mamba is not None:
            mamba = layer.mamba.shape
            yield "conv_weight", layer.mamba.conv_weight, (mamba.conv_kernel, mamba.conv_channels)
            yield "conv_bias", layer.mamba.conv_bias, (mamba.conv_channels,)
            for name in ("decay_rate", "step_bias", "skip"):
                yield name, getattr(layer.mamba, name), (mamba.num_heads,)
            yield "norm", layer.mamba.norm, (mamba.features,)

    def _norm_vectors(self, name: str, norm: NativeNorm | None) -> Iterator[Vector]:
        if norm is not None:
            yield f"{name} norm", norm.weight, (self._config.hidden_size,)
            yield f"{name} norm's bias", norm.bias, (self._config.hidden_size,)

    def _latent(self, name: str, latent: NativeLatent, angles: Angles | None) -> None:
        shape, heads = latent.shape, self._config.num_heads
        self._linear(f"{name}: to_keys", latent.to_keys, heads * shape.kv_rank, shape.plain_dim)
        values = heads * shape.value_dim
        self._linear(f"{name}: to_values", latent.to_values, values, shape.kv_rank)
        if shape.query_rank is not None:
            features = heads * shape.query_dim
            self._projection(f"{name}: queries", latent.queries, features, shape.query_rank)
            self._vectors(name, [("query_norm", latent.query_norm, (shape.query_rank,))])
        if angles is None or 2 * angles.cosines.shape[1] != shape.rotary_dim:
            raise UnfitWeightsError(f"{name}: {shape.rotary_dim} features are rotated otherwise")
        self._vectors(name, [("latent_norm", latent.latent_norm, (shape.kv_rank,))])
        if shape.cached_features != self._config.head_dim or self._config.num_kv_heads != 1:
            raise UnfitWeightsError(f"{name}: {shape.cached_features} features are not one head's")

    def _experts(self, name: str, experts: NativeExperts) -> None:
        config, hidden = experts.config, self._config.hidden_size
        shared = config.shared_intermediate_size
        widths = [config.intermediate_size] * config.num_experts
        widths += [] if shared is None else [shared]
        scores = config.num_experts + (shared is not None and config.gates_shared)
        if not len(experts.gate_up) == len(experts.down) == len(widths):
            raise UnfitWeightsError(f"{name}: {len(experts.down)} experts for {len(widths)}")
        if experts.router.format is not Format.F32:
            raise UnfitWeightsError(f"{name}: the router is of {experts.router.format.name}")
        self._linear(f"{name}: router", experts.router, scores, hidden)
        self._vectors(name, [("choice_bias", experts.choice_bias, (config.num_experts,))])
        for index, width in enumerate(widths):
            gate_up, down = experts.gate_up[index], experts.down[index]
            self._projection(f"{name}: gate_up of expert {index}", gate_up, 2 * width, hidden)
            self._projection(f"{name}: down of expert {index}", down, hidden, width)
        # The C++ side infers from the first what all of them read.
        chosen = experts.gate_up[: config.num_experts]
        if len({tuple(part.format for part in parts) for parts in chosen}) > 1:
            raise UnfitWeightsError(f"{name}: experts are stored in several formats")

    def _projection(
        self, name: str, parts: Projection, out_features: int, in_features: int
    ) -> None:
        total = sum(part.out_features for part in parts)
        if not 1 <= len(parts) <= MAX_PARTS or total != out_features:
            raise UnfitWeightsError(
                f"{name} has {len(parts)} parts with {total} outputs; {out_features} are read"
            )
        for part in parts:
            self._linear(name, part, part.out_features, in_features)

    def _linear(self, name: str, part: PackedLinear, out_features: int, in_features: int) -> None:
        found = part.out_features, part.in_features
        if found != (out_features, in_features):
            raise UnfitWeightsError(
                f"{name} is {found[0]} x {found[1]}; {out_features} x {in_features} are read"
            )
        needed = self._num_bytes(ctypes.byref(linear_struct(part)))
        if part.num_bytes != needed or not part.panels.is_contiguous():
            raise UnfitWeightsError(f"{name} has {part.num_bytes} bytes; {needed} are read")
        self._vectors(name, [("bias", part.bias, (out_features,))])

    def _vectors(self, name: str, vectors: Sequence[Vector] | Iterator[Vector]) -> None:
        for own, tensor, shape in vectors:
            if tensor is not None and tuple(tensor.shape) != shape:
                raise UnfitWeightsError(f"{name}: {own} is {tuple(tensor.shape)}; {shape} are read")


def _delta_vectors(delta: NativeDelta) -> Iterator[Vector]:
    shape = delta.shape
    yield "conv_weight", delta.conv_weight, (shape.conv_kernel, shape.conv_channels)
    yield "decay_rate", delta.decay_rate, (shape.num_value_heads,)
    yield "dt_bias", delta.dt_bias, (shape.num_value_heads,)
    yield "norm", delta.norm, (shape.value_head_dim,)
