"""A decoder layer's weights, packed for the native decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from inference.models.adapter import AdapterWeights, adaptable_shapes
from inference.models.config import MixerKind, ModelConfig
from inference.models.families.registry import family_of
from inference.models.layer_configs import DeltaConfig, ExpertsConfig, LatentConfig
from inference.models.layers.attention_mixer import QUERIES, first_names, load_up
from inference.models.layers.experts import CHOICE_BIAS, expert_prefixes
from inference.models.layers.mamba import load_mamba_vectors
from inference.models.layers.norms import head_norm_weights, rms_weight
from inference.models.layers.rope import RopeTable
from inference.models.layers.state_rows import conv_weight, decay_rate
from inference.models.lazy_weights import LazyWeight, lazy
from inference.models.native.adapters import AdaptedStack
from inference.models.native.layers import (
    Angles,
    NativeConv,
    NativeDelta,
    NativeExperts,
    NativeLatent,
    NativeLayer,
    NativeNorm,
)
from inference.models.native.packing import Format, PackedLinear, Packer, pack
from inference.models.native.structs import Projection
from inference.models.stored_weights import DenseWeight
from inference.models.weight_source import WeightSource

Stack = tuple[tuple[str, ...], torch.Tensor | None]
"""Names of weights that are stacked, and where each output of the first of them is in its file;
``None``: in this order."""
SHARED = ".shared_expert"


def load_layer(
    config: ModelConfig,
    weights: WeightSource,
    index: int,
    angles: Mapping[MixerKind, Angles],
    packer: Packer,
) -> NativeLayer:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    kind, is_sparse = config.mixer_kinds[index], config.mlp_kinds[index] == "sparse"

    def stored(*inner_names: str) -> Sequence[LazyWeight]:
        return weights.stored_parts(*(prefix + name for name in inner_names))

    def projection(*inner_names: str) -> Projection:
        return [packer.pack(part) for part in stored(*inner_names)]

    def norm(name: str | None) -> NativeNorm | None:
        return None if name is None else load_norm(config, weights, prefix + name)

    stacks, output = _mixer_weights(config, index)
    qkv: list[PackedLinear] = []
    for inner_names, order in stacks:
        first, *others = stored(*inner_names)
        qkv += [packer.pack(first if order is None else first.with_first(order))]
        qkv += map(packer.pack, others)
    layer = NativeLayer(
        qkv=qkv,
        output=projection(output),
        gate_up=() if is_sparse else projection(*names.gate_up),
        down=() if is_sparse else projection(names.down),
        experts=load_experts(config, weights, f"{prefix}mlp", packer) if is_sparse else None,
        input_norm=norm(names.input_norm),
        mixed_norm=norm(names.mixed_norm),
        mlp_norm=norm(names.mlp_norm),
        mlp_added_norm=norm(names.mlp_added_norm),
    )
    match kind:
        case "delta":
            return replace(layer, delta=_load_delta(config, weights, f"{prefix}linear_attn."))
        case "conv":
            return replace(layer, conv=_load_conv(config, weights, f"{prefix}conv.conv"))
        case "mamba":
            return replace(layer, mamba=load_mamba_vectors(config, weights, index))
        case "latent":
            latent = load_latent(config, weights, index, packer)
            return replace(layer, angles=angles[kind], latent=latent)
    query_norm, key_norm = head_norm_weights(config, weights, index) or (None, None)
    return replace(
        layer,
        query_norm=None if query_norm is None else query_norm.float().contiguous(),
        key_norm=None if key_norm is None else key_norm.float().contiguous(),
        angles=angles.get(kind),
        window=config.window_of(kind),
        is_chunked=kind == "chunked",
        grows_queries=config.grows_queries(kind),
    )


def load_norm(config: ModelConfig, weights: WeightSource, name: str) -> NativeNorm:
    weight, bias = rms_weight(config, weights, name), None
    if config.norm == "layer" and weights.has(f"{name}.bias"):
        bias = weights.tensor(f"{name}.bias").float().contiguous()
    return NativeNorm(weight.float().contiguous(), bias)


def native_angles(table: RopeTable) -> Angles:
    """One angle for each pair of features, in either layout."""
    step = 2 if table.is_interleaved else 1
    half = table.rotary_dim // 2
    pairs = slice(0, None, 2) if step == 2 else slice(0, half)
    sines = -table.sines[:, pairs]
    return Angles(table.cosines[:, pairs].contiguous(), sines.contiguous())


def adapted_stacks(config: ModelConfig, layers: Sequence[NativeLayer]) -> list[list[AdaptedStack]]:
    """Leaves out weights that adapters may not change."""
    names, shapes = family_of(config).layer_names, adaptable_shapes(config)
    found = []
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{index}."
        mixer, output = _mixer_weights(config, index)
        qkv = [name for inner_names, _ in mixer for name in inner_names]
        stacks = (qkv, (output,), names.gate_up, (names.down,), (QUERIES,))
        queries = () if layer.latent is None else layer.latent.queries
        projections = layer.qkv, layer.output, layer.gate_up, layer.down, queries
        found.append(
            [
                AdaptedStack(
                    names=[(n, shapes[n][0]) for n in (prefix + s for s in stack) if n in shapes],
                    is_packed=any(part.format is not Format.F32 for part in projection),
                )
                for stack, projection in zip(stacks, projections, strict=True)
            ]
        )
    return found


def in_order_of_layers(config: ModelConfig, weights: AdapterWeights) -> AdapterWeights:
    """Orders the outputs of adapted weights as ``load_layer`` orders those of the weights."""
    modules = dict(weights.modules)
    for index in range(config.num_layers):
        stacks, _ = _mixer_weights(config, index)
        for (name, *_), order in stacks:
            whole_name = f"model.layers.{index}.{name}"
            if order is not None and (module := modules.get(whole_name)) is not None:
                modules[whole_name] = replace(module, up=module.up[order])
    return AdapterWeights(modules)


def _mixer_weights(config: ModelConfig, index: int) -> tuple[list[Stack], str]:
    kind, names = config.mixer_kinds[index], family_of(config).layer_names
    match kind:
        case "conv":
            return [(("conv.in_proj",), None)], "conv.out_proj"
        case "latent":
            return [(first_names(config), None)], names.output
        case "mamba":
            assert config.mamba is not None
            prefix = config.mamba.prefix
            return [((f"{prefix}.in_proj",), None)], f"{prefix}.out_proj"
        case "delta":
            assert config.delta is not None
            return _delta_stacks(config.delta), "linear_attn.out_proj"
    if not config.has_output_gate:
        return [(names.qkv, None)], names.output
    # Files have each head's gates behind its queries; here all gates are first.
    heads = torch.arange(2 * config.num_heads * config.head_dim).view(config.num_heads, 2, -1)
    return [(names.qkv, heads.flip(1).transpose(0, 1).flatten())], names.output


def _delta_stacks(shape: DeltaConfig) -> list[Stack]:
    """Each kind of features has all its heads in order, also where files go by key head."""
    names, heads = shape.names, shape.num_key_heads
    group, values = shape.num_value_heads // heads, shape.value_features // heads
    sizes = [shape.key_head_dim] * 2 + [values] * 2
    return [
        (
            tuple(f"linear_attn.{name}" for name in names.qkvz),
            _by_kind(heads, sizes) if names.is_qkvz_grouped else None,
        ),
        (
            tuple(f"linear_attn.{name}" for name in names.ba),
            _by_kind(heads, [group, group]) if names.is_ba_grouped else None,
        ),
    ]


def _by_kind(num_groups: int, sizes: Sequence[int]) -> torch.Tensor:
    """Indices that order the outputs of ``num_groups`` equal groups by their kinds."""
    rows = torch.arange(num_groups * sum(sizes)).view(num_groups, -1)
    return torch.cat([kind.flatten() for kind in torch.split(rows, list(sizes), dim=1)])


def _load_delta(config: ModelConfig, weights: WeightSource, prefix: str) -> NativeDelta:
    assert config.delta is not None
    return NativeDelta(
        shape=config.delta,
        conv_weight=conv_weight(weights, f"{prefix}conv1d"),
        decay_rate=decay_rate(weights, prefix + config.delta.names.decay).contiguous(),
        dt_bias=weights.tensor(f"{prefix}dt_bias").float().contiguous(),
        norm=weights.tensor(f"{prefix}norm.weight").float().contiguous(),
    )


def _load_conv(config: ModelConfig, weights: WeightSource, name: str) -> NativeConv:
    shape = config.short_conv
    assert shape is not None
    bias = weights.tensor(f"{name}.bias").float().contiguous() if shape.has_bias else None
    return NativeConv(shape=shape, weight=conv_weight(weights, name), bias=bias)


def load_experts(
    config: ModelConfig,
    weights: WeightSource,
    prefix: str,
    packer: Packer,
) -> NativeExperts:
    """``prefix``: as ``model.layers.0.mlp``. Each expert is read and packed by one thread."""
    experts = config.experts
    assert experts is not None, "its layers are sparse"

    def expert(own: str, packer: Packer) -> tuple[Projection, Projection]:
        is_shared = own.endswith(SHARED)
        gate_up = experts.shared_gate_up if is_shared else experts.gate_up
        down = experts.shared_down if is_shared else "down_proj"
        parts = weights.stored_parts(*(f"{own}.{name}" for name in gate_up))
        return (
            [packer.pack(part) for part in parts],
            [packer.pack(part) for part in weights.stored_parts(f"{own}.{down}")],
        )

    router = weights.tensor(f"{prefix}.gate.weight").float()
    prefixes = list(expert_prefixes(experts, prefix))
    if experts.shared_intermediate_size is not None:
        prefixes.append(prefix + SHARED)
        if experts.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").float()
            router = torch.cat([router, gate.view(1, -1)])
    packed = packer.each(expert, prefixes)
    return NativeExperts(
        config=experts,
        router=pack(DenseWeight(weight=router)),
        gate_up=[gate_up for gate_up, _ in packed],
        down=[down for _, down in packed],
        choice_bias=_choice_bias(experts, weights, prefix),
    )


def _choice_bias(config: ExpertsConfig, weights: WeightSource, prefix: str) -> torch.Tensor | None:
    if not config.has_choice_bias:
        return None
    return weights.tensor(f"{prefix}.{CHOICE_BIAS}").float().flatten()


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
    (reader,) = weight.readers
    order = rows.numpy() if reader.order is None else reader.order[rows.numpy()]
    return replace(weight, readers=[replace(reader, num_rows=len(order), order=order)])
