"""A decoder layer's weights, packed for the native decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch

from inference.models.adapter import AdapterWeights, adaptable_shapes
from inference.models.config import MixerKind, ModelConfig
from inference.models.errors import UnfitWeightsError
from inference.models.families.decoder_tensors import layer_tensors
from inference.models.families.registry import family_of
from inference.models.layer_configs import DeltaConfig, LatentConfig, Scoring
from inference.models.layers.attention_mixer import QUERIES, first_names, load_up
from inference.models.layers.experts import CHOICE_BIAS, expert_prefixes
from inference.models.layers.mamba import load_mamba_vectors
from inference.models.layers.norms import head_norm_weights, rms_weight
from inference.models.layers.rope import RopeTable
from inference.models.layers.state_rows import conv_weight, decay_rate
from inference.models.lazy_weights import LazyWeight, lazy
from inference.models.native.adapters import AdaptedStack
from inference.models.native.packing import Format, PackedLinear, Packer, pack
from inference.models.native.structs import (
    CDeltaNet,
    CExperts,
    CLatent,
    CLayer,
    CMamba,
    CShortConv,
    Part,
    Projection,
    norm_part,
)
from inference.models.stored_weights import DenseWeight
from inference.models.weight_source import WeightSource

Stack = tuple[tuple[str, ...], torch.Tensor | None]
"""Names of weights that are stacked, and where each output of the first of them is in its file;
``None``: in this order."""
SHARED = ".shared_expert"

SCORINGS: dict[Scoring, int] = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2}
"""``Scoring`` of model.h."""

Fields = dict[str, object]


def load_layer(
    config: ModelConfig,
    weights: WeightSource,
    index: int,
    angles: Mapping[MixerKind, Fields],
    packer: Packer,
) -> Part:
    names, prefix = family_of(config).layer_names, f"model.layers.{index}."
    kind, mlp = config.mixer_kinds[index], config.mlp_kinds[index]
    declared = {tensor.name: tensor.shape for tensor in layer_tensors(config, names, kind, mlp)}

    def shape(*inner_names: str) -> tuple[int, ...]:
        each = [declared[f"{name}.weight"] for name in inner_names]
        return sum(outputs for outputs, _ in each), each[0][1]

    def stored(*inner_names: str) -> Sequence[LazyWeight]:
        return weights.stored_parts(*(prefix + name for name in inner_names))

    def projection(*inner_names: str) -> Projection:
        return [packer.pack(part) for part in stored(*inner_names)]

    def norm(name: str | None) -> Part | None:
        return None if name is None else load_norm(config, weights, prefix + name)

    stacks, output = _mixer_weights(config, index)
    qkv: list[PackedLinear] = []
    for inner_names, order in stacks:
        first, *others = stored(*inner_names)
        qkv += [packer.pack(first if order is None else first.with_first(order))]
        qkv += map(packer.pack, others)
    given: Fields = {"qkv": qkv, "output": projection(output)}
    shapes = {
        "qkv": shape(*(name for stack, _ in stacks for name in stack)),
        "output": shape(output),
        "query_norm": declared.get(f"{names.query_norm}.weight", (config.head_dim,)),
        "key_norm": declared.get(f"{names.key_norm}.weight", (config.head_dim,)),
    }
    if mlp == "sparse":
        given["experts"] = load_experts(config, weights, f"{prefix}mlp", packer)
    else:
        given |= {"gate_up": projection(*names.gate_up), "down": projection(names.down)}
        shapes |= {"gate_up": shape(*names.gate_up), "down": shape(names.down)}
    match kind:
        case "delta":
            given["delta"] = _load_delta(config, weights, f"{prefix}linear_attn.")
        case "conv":
            given["conv"] = _load_conv(config, weights, f"{prefix}conv.conv")
        case "mamba":
            given["mamba"] = _load_mamba(config, weights, index)
        case "latent":
            given |= {"latent": load_latent(config, weights, index, packer)} | angles[kind]
        case _:
            given |= _attention_fields(config, weights, index) | angles.get(kind, {})
    if (cosines := given.get("cosines")) is not None:
        assert isinstance(cosines, torch.Tensor)
        shapes |= dict.fromkeys(("cosines", "sines"), tuple(cosines.shape))
    return Part(
        CLayer,
        shapes,
        input_norm=norm(names.input_norm),
        mixed_norm=norm(names.mixed_norm),
        mlp_norm=norm(names.mlp_norm),
        mlp_added_norm=norm(names.mlp_added_norm),
        **given,
    )


def _attention_fields(config: ModelConfig, weights: WeightSource, index: int) -> Fields:
    kind = config.mixer_kinds[index]
    query_norm, key_norm = head_norm_weights(config, weights, index) or (None, None)
    return {
        "query_norm": query_norm,
        "key_norm": key_norm,
        "window": config.window_of(kind),
        "is_chunked": kind == "chunked",
        "grows_queries": config.grows_queries(kind),
    }


def load_norm(config: ModelConfig, weights: WeightSource, name: str) -> Part:
    weight, bias = rms_weight(config, weights, name), None
    if config.norm == "layer" and weights.has(f"{name}.bias"):
        bias = weights.tensor(f"{name}.bias")
    return norm_part(config.hidden_size, weight, bias)


def native_angles(table: RopeTable) -> Fields:
    """Of a layer: one angle for each position and pair of features, in either layout."""
    step = 2 if table.is_interleaved else 1
    half = table.rotary_dim // 2
    pairs = slice(0, None, 2) if step == 2 else slice(0, half)
    cosines, sines = table.cosines[:, pairs], -table.sines[:, pairs]
    angles = {"cosines": cosines.contiguous(), "sines": sines.contiguous()}
    return angles | {"rotary_dim": table.rotary_dim}


def adapted_stacks(config: ModelConfig, layers: Sequence[Part]) -> list[list[AdaptedStack]]:
    """Leaves out weights that adapters may not change."""
    names, shapes = family_of(config).layer_names, adaptable_shapes(config)
    found = []
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{index}."
        mixer, output = _mixer_weights(config, index)
        qkv = [name for inner_names, _ in mixer for name in inner_names]
        stacks = (qkv, (output,), names.gate_up, (names.down,), (QUERIES,))
        latent = layer.given.get("latent")
        of_layer = [layer.given.get(name) for name in ("qkv", "output", "gate_up", "down")]
        of_layer.append(latent.given["queries"] if isinstance(latent, Part) else None)
        projections = [cast(Projection, projection or ()) for projection in of_layer]
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


def _load_delta(config: ModelConfig, weights: WeightSource, prefix: str) -> Part:
    delta = config.delta
    assert delta is not None
    of_heads = (delta.num_value_heads,)
    return Part(
        CDeltaNet,
        {
            "conv_weight": (delta.conv_kernel, delta.conv_channels),
            "decay_rate": of_heads,
            "dt_bias": of_heads,
            "norm": (delta.value_head_dim,),
        },
        delta,
        conv_weight=conv_weight(weights, f"{prefix}conv1d"),
        decay_rate=decay_rate(weights, prefix + delta.names.decay),
        dt_bias=weights.tensor(f"{prefix}dt_bias"),
        norm=weights.tensor(f"{prefix}norm.weight"),
    )


def _load_conv(config: ModelConfig, weights: WeightSource, name: str) -> Part:
    shape = config.short_conv
    assert shape is not None
    bias = weights.tensor(f"{name}.bias") if shape.has_bias else None
    shapes = {"weight": (shape.kernel, shape.channels), "bias": (shape.channels,)}
    return Part(CShortConv, shapes, shape, weight=conv_weight(weights, name), bias=bias)


def _load_mamba(config: ModelConfig, weights: WeightSource, index: int) -> Part:
    vectors = load_mamba_vectors(config, weights, index)
    shape = vectors.shape
    shapes = {
        "conv_weight": (shape.conv_kernel, shape.conv_channels),
        "conv_bias": (shape.conv_channels,),
        "norm": (shape.features,),
    }
    shapes |= dict.fromkeys(("decay_rate", "step_bias", "skip"), (shape.num_heads,))
    return Part(CMamba, shapes, vectors, shape)


def load_experts(config: ModelConfig, weights: WeightSource, prefix: str, packer: Packer) -> Part:
    """``prefix``: as ``model.layers.0.mlp``. The shared expert is the last. Each expert is read and
    packed by one thread. Raises ``UnfitWeightsError``."""
    experts, hidden = config.experts, config.hidden_size
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

    # One more output of the router is the shared expert's gate.
    router = weights.tensor(f"{prefix}.gate.weight").float()
    prefixes = list(expert_prefixes(experts, prefix))
    widths, shared = [experts.intermediate_size] * len(prefixes), experts.shared_intermediate_size
    if shared is not None:
        prefixes.append(prefix + SHARED)
        widths.append(shared)
        if experts.gates_shared:
            gate = weights.tensor(f"{prefix}.shared_expert_gate.weight").float()
            router = torch.cat([router, gate.view(1, -1)])
    choice_bias = None
    if experts.has_choice_bias:
        choice_bias = weights.tensor(f"{prefix}.{CHOICE_BIAS}").flatten()
    packed = packer.each(expert, prefixes)
    # The C++ side infers from the first what all of them read.
    formats = {tuple(part.format for part in ups) for ups, _ in packed[: experts.num_experts]}
    if len(formats) > 1:
        raise UnfitWeightsError(f"{prefix}: experts are stored in several formats")
    return Part(
        CExperts,
        {
            "router": (experts.num_experts + (shared is not None and experts.gates_shared), hidden),
            "choice_bias": (experts.num_experts,),
            "gate_up": [(2 * width, hidden) for width in widths],
            "down": [(hidden, width) for width in widths],
        },
        experts,
        per_token=experts.experts_per_token,
        intermediate_size=max(widths),
        scoring=SCORINGS[experts.scoring],
        has_shared=shared is not None,
        choice_bias=choice_bias,
        router=pack(DenseWeight(weight=router)),
        gate_up=[gate_up for gate_up, _ in packed],
        down=[down for _, down in packed],
    )


def load_latent(config: ModelConfig, weights: WeightSource, index: int, packer: Packer) -> Part:
    shape, prefix, heads = config.latent, f"model.layers.{index}.", config.num_heads
    assert shape is not None, "its layers are latent"
    own = f"{prefix}self_attn."

    def vector(name: str) -> torch.Tensor:
        return weights.tensor(f"{own}{name}.weight")

    rank, query_rank = shape.kv_rank, shape.query_rank
    shapes: dict[str, tuple[int, ...]] = {
        "latent_norm": (rank,),
        "to_keys": (heads * rank, shape.plain_dim),
        "to_values": (heads * shape.value_dim, rank),
    }
    queries = None
    if query_rank is not None:
        queries = [packer.pack(part) for part in weights.stored_parts(prefix + QUERIES)]
        shapes |= {"query_norm": (query_rank,), "queries": (heads * shape.query_dim, query_rank)}
    to_keys, to_values = _up(config, shape, weights, index)
    return Part(
        CLatent,
        shapes,
        shape,
        latent_norm=vector("kv_a_layernorm"),
        to_keys=packer.pack(to_keys),
        to_values=packer.pack(to_values),
        query_norm=None if query_rank is None else vector("q_a_layernorm"),
        queries=queries,
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
