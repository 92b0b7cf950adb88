"""A decoder's tensors by Hugging Face's names, with their roles and shapes. Files may stack a
layer's experts in one tensor; ``loading/weights/named_files.py`` takes them apart.

Some models have a layer that predicts the token after the next (multi-token prediction), which is
attention, with an MLP of the model's kind. Inside it is called as if it were the model's last
layer, ``model.layers.{num_layers}``. Files that lack the table or the head mean the model's own.

    mtp.embed_tokens ─▶ mtp.pre_fc_norm_embedding ─┐
                                                   ├─ mtp.fc ─▶ layer ─▶ mtp.norm ─▶ mtp.head
                        mtp.pre_fc_norm_hidden ────┘"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace

from inference.models.config import MixerKind, MlpKind, ModelConfig
from inference.models.families.roles import LayerNames, Section, TensorRole, column, row
from inference.models.families.tower import tower_tensors
from inference.models.layer_configs import DeltaConfig, LatentConfig


def delta_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    delta, hidden = config.delta, config.hidden_size
    assert delta is not None
    prefix, names, heads = "linear_attn.", delta.names, delta.num_value_heads
    keys = _of_key_heads(delta, delta.key_head_dim)
    of_heads, values = _of_value_heads(delta, 1), _of_value_heads(delta, delta.value_head_dim)
    conv = keys, keys, *values
    if names.is_qkvz_grouped:
        each = 2 * (delta.key_features + delta.value_features) // delta.num_key_heads
        yield from column(prefix + names.qkvz[0], hidden, _of_key_heads(delta, each))
    else:
        yield from column(prefix + names.qkvz[0], hidden, *conv)
        yield from column(prefix + names.qkvz[1], hidden, *values)
    for name in names.ba:
        shape = 2 * heads // len(names.ba), hidden
        both = (_of_key_heads(delta, 2 * heads // delta.num_key_heads),)
        sections = both if names.is_ba_grouped else of_heads
        yield TensorRole(f"{prefix}{name}.weight", "state", shape, sections=sections)
    channels, kernel = delta.conv_channels, delta.conv_kernel
    yield TensorRole(f"{prefix}conv1d.weight", "conv", (channels, 1, kernel), sections=conv)
    yield TensorRole(f"{prefix}{names.decay}", "state", (heads,), sections=of_heads)
    yield TensorRole(f"{prefix}dt_bias", "state", (heads,), sections=of_heads)
    yield TensorRole(f"{prefix}norm.weight", "norm", (delta.value_head_dim,))
    yield from row(f"{prefix}out_proj", hidden, *values)


def _of_value_heads(delta: DeltaConfig, width: int) -> tuple[Section, ...]:
    """Features of all value heads, ``width`` each, with the key head that each belongs to:

    by key head   [ 0 0 1 1 2 2 ]    tiled   [ 0 1 2 ][ 0 1 2 ]
    """
    per_key_head = delta.num_value_heads // delta.num_key_heads
    if delta.are_value_heads_tiled:
        return (_of_key_heads(delta, width),) * per_key_head
    return (_of_key_heads(delta, per_key_head * width),)


def _of_key_heads(delta: DeltaConfig, width: int) -> Section:
    return Section("key_heads", delta.num_key_heads, width)


def conv_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    conv, hidden = config.short_conv, config.hidden_size
    assert conv is not None
    channels, has_bias = Section("channels", conv.channels), conv.has_bias
    yield from column("conv.in_proj", hidden, *(channels,) * 3, has_bias=has_bias)
    shape = conv.channels, 1, conv.kernel
    yield TensorRole("conv.conv.weight", "conv", shape, sections=(channels,))
    if has_bias:
        yield TensorRole("conv.conv.bias", "conv", shape[:1], sections=(channels,))
    yield from row("conv.out_proj", hidden, channels, has_bias=has_bias)


def mamba_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """Not divided among ranks: the norm is of many heads together."""
    mamba, hidden = config.mamba, config.hidden_size
    assert mamba is not None
    prefix, heads, channels = f"{mamba.prefix}.", (mamba.num_heads,), (mamba.conv_channels,)
    projected = mamba.projected_features
    yield TensorRole(f"{prefix}in_proj.weight", "column", (projected, hidden))
    yield TensorRole(f"{prefix}out_proj.weight", "row", (hidden, mamba.features))
    if mamba.has_bias:
        yield TensorRole(f"{prefix}in_proj.bias", "column", (projected,))
        yield TensorRole(f"{prefix}out_proj.bias", "row_bias", (hidden,))
    yield TensorRole(f"{prefix}conv1d.weight", "conv", (*channels, 1, mamba.conv_kernel))
    if mamba.has_conv_bias:
        yield TensorRole(f"{prefix}conv1d.bias", "conv", channels)
    # GGUF holds vectors of heads as columns, and the norm's numbers group by group.
    for name in (mamba.decay, "dt_bias", "D"):
        yield TensorRole(prefix + name, "state", heads, may_be_folded=True)
    yield TensorRole(f"{prefix}norm.weight", "norm", (mamba.features,), may_be_folded=True)


DEFAULT_NAMES = LayerNames()
STATES: Mapping[MixerKind, Callable[[ModelConfig], Iterator[TensorRole]]] = {
    "delta": delta_tensors,
    "conv": conv_tensors,
    "mamba": mamba_tensors,
}


def decoder_tensors(config: ModelConfig, names: LayerNames) -> Iterator[TensorRole]:
    yield from outer_tensors(config)
    for index, (mixer, mlp) in enumerate(zip(config.mixer_kinds, config.mlp_kinds, strict=True)):
        for tensor in layer_tensors(config, names, mixer, mlp):
            yield in_layer(index, tensor)
    if config.has_predictor:
        yield from predictor_tensors(config)
    if config.vision is not None:
        yield from tower_tensors(config.vision)


def layer_tensors(
    config: ModelConfig, names: LayerNames, mixer: MixerKind, mlp: MlpKind
) -> Iterator[TensorRole]:
    """By their names in the layer."""
    yield from norm_tensors(config, names)
    if mixer in STATES:
        yield from STATES[mixer](config)
    elif mixer == "latent":
        yield from latent_tensors(config)
    elif mixer != "none":
        yield from attention_tensors(config, names)
    if mlp == "sparse":
        yield from sparse_tensors(config)
    elif mlp == "dense":
        yield from mlp_tensors(config, names)


def outer_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    table = config.vocab_size, config.hidden_size
    tokens = (Section("vocabulary", config.vocab_size),)
    yield TensorRole("model.embed_tokens.weight", "embedding", table, sections=tokens)
    yield from _norm("model.norm", config)
    if not config.tie_embeddings:
        yield TensorRole("lm_head.weight", "head", table, sections=tokens)


def in_layer(index: int, tensor: TensorRole) -> TensorRole:
    prefix = f"model.layers.{index}."
    parts = tuple(prefix + part for part in tensor.parts)
    return replace(tensor, name=prefix + tensor.name, parts=parts)


def norm_tensors(config: ModelConfig, names: LayerNames = DEFAULT_NAMES) -> Iterator[TensorRole]:
    for name in names.norms:
        yield from _norm(name, config)


def attention_tensors(
    config: ModelConfig, names: LayerNames = DEFAULT_NAMES
) -> Iterator[TensorRole]:
    num_heads, head_dim, has_bias = config.num_heads, config.head_dim, config.qkv_bias
    heads = Section("heads", num_heads, head_dim)
    kv = Section("kv_heads", config.num_kv_heads, head_dim)
    queries = Section("heads", num_heads, 2 * head_dim) if config.has_output_gate else heads
    stacked = ((queries,), (kv,), (kv,)) if len(names.qkv) == 3 else ((queries, kv, kv),)
    for name, sections in zip(names.qkv, stacked, strict=True):
        yield from column(name, config.hidden_size, *sections, has_bias=has_bias)
    yield from row(names.output, config.hidden_size, heads, has_bias=config.output_bias)
    if config.has_sinks:
        of_heads = (Section("heads", num_heads),)
        yield TensorRole(names.sinks, "norm", (num_heads,), sections=of_heads)
    if not config.qk_norm:
        return
    for name, wide in ((names.query_norm, heads), (names.key_norm, kv)):
        if config.is_qk_norm_wide:
            yield TensorRole(f"{name}.weight", "norm", (wide.features,), sections=(wide,))
        else:
            yield TensorRole(f"{name}.weight", "norm", (head_dim,))


def mlp_tensors(config: ModelConfig, names: LayerNames = DEFAULT_NAMES) -> Iterator[TensorRole]:
    hidden, has_bias = config.hidden_size, config.mlp_bias
    inner = Section("inner", config.intermediate_size)
    stacked = (inner,) * ((1 + config.is_gated) // len(names.gate_up))
    for name in names.gate_up:
        yield from column(name, hidden, *stacked, has_bias=has_bias)
    yield from row(names.down, hidden, inner, has_bias=has_bias)


def _norm(name: str, config: ModelConfig) -> Iterator[TensorRole]:
    yield TensorRole(f"{name}.weight", "norm", (config.hidden_size,))
    if config.has_norm_bias:
        yield TensorRole(f"{name}.bias", "norm", (config.hidden_size,))


def latent_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    shape, hidden, num_heads = config.latent, config.hidden_size, config.num_heads
    assert shape is not None, "its layers are latent"
    own, has_bias = "self_attn.", config.qkv_bias
    queries = Section("heads", num_heads, shape.query_dim)
    if shape.query_rank is None:
        yield from column(f"{own}q_proj", hidden, queries)
    else:
        yield from _whole(f"{own}q_a_proj", shape.query_rank, hidden, has_bias=has_bias)
        yield TensorRole(f"{own}q_a_layernorm.weight", "norm", (shape.query_rank,))
        yield from column(f"{own}q_b_proj", shape.query_rank, queries)
    compressed = f"{own}kv_a_proj_with_mqa"
    yield from _whole(compressed, shape.cached_features, hidden, has_bias=has_bias)
    yield TensorRole(f"{own}kv_a_layernorm.weight", "norm", (shape.kv_rank,))
    for name, per_head, in_features in _up(shape):
        heads = (Section("heads", num_heads, per_head),)
        size = num_heads * per_head, in_features
        yield TensorRole(f"{own}{name}.weight", "up", size, sections=heads)
    values = Section("heads", num_heads, shape.value_dim)
    yield from row(f"{own}o_proj", hidden, values, has_bias=config.output_bias)


def _up(shape: LatentConfig) -> Iterator[tuple[str, int, int]]:
    """Yields names, outputs of each head, and inputs."""
    if shape.is_up_split:
        yield "k_b_proj", shape.kv_rank, shape.plain_dim
        yield "v_b_proj", shape.value_dim, shape.kv_rank
    else:
        yield "kv_b_proj", shape.up_features, shape.kv_rank


def _whole(name: str, features: int, in_features: int, *, has_bias: bool) -> Iterator[TensorRole]:
    yield TensorRole(f"{name}.weight", "whole_column", (features, in_features))
    if has_bias:
        yield TensorRole(f"{name}.bias", "whole_column", (features,))


def sparse_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None, "its layers are sparse"
    count, inner = experts.num_experts, experts.intermediate_size
    all_experts = (Section("experts", count),)
    yield TensorRole("mlp.gate.weight", "router", (count, hidden))
    if experts.has_bias:
        yield TensorRole("mlp.gate.bias", "router", (count,))
    if experts.has_choice_bias:
        bias = "mlp.gate.e_score_correction_bias"
        yield TensorRole(bias, "router", (count,), may_be_folded=True)
    for name, shape in (
        ("gate_proj", (inner, hidden)),
        ("up_proj", (inner, hidden)),
        ("down_proj", (hidden, inner)),
    ):
        if name == "gate_proj" and not experts.is_gated:
            continue
        parts = tuple(f"mlp.experts.{index}.{name}.weight" for index in range(count))
        weight = f"mlp.experts.{name}.weight"
        yield TensorRole(weight, "experts", (count, *shape), parts, all_experts)
        if experts.has_bias:
            biases = tuple(part.replace(".weight", ".bias") for part in parts)
            bias = f"mlp.experts.{name}.bias"
            yield TensorRole(bias, "norm", (count, shape[0]), biases, all_experts)
    if experts.shared_intermediate_size is None:
        return
    if experts.gates_shared:
        yield TensorRole("mlp.shared_expert_gate.weight", "router", (1, hidden))
    shared = Section("shared_inner", experts.shared_intermediate_size)
    stacked = (shared,) * ((1 + experts.is_gated) // len(experts.shared_gate_up))
    for name in experts.shared_gate_up:
        yield from column(f"mlp.shared_expert.{name}", hidden, *stacked)
    yield from row(f"mlp.shared_expert.{experts.shared_down}", hidden, shared)


PREDICTOR = "mtp."
PREDICTOR_TABLE = f"{PREDICTOR}embed_tokens"
PREDICTOR_HEAD = f"{PREDICTOR}head"
_PREDICTOR_LAYER = f"{PREDICTOR}layers.0."
_NEXTN_NAMES = {
    "embed_tokens": PREDICTOR_TABLE,
    "enorm": f"{PREDICTOR}pre_fc_norm_embedding",
    "hnorm": f"{PREDICTOR}pre_fc_norm_hidden",
    "eh_proj": f"{PREDICTOR}fc",
    "shared_head.norm": f"{PREDICTOR}norm",
    "shared_head.head": PREDICTOR_HEAD,
}


def predictor_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    hidden = config.hidden_size
    table = config.vocab_size, hidden
    yield TensorRole(f"{PREDICTOR_TABLE}.weight", "embedding", table, is_optional=True)
    yield TensorRole(f"{PREDICTOR_HEAD}.weight", "head", table, is_optional=True)
    yield TensorRole(f"{PREDICTOR}fc.weight", "column", (hidden, 2 * hidden))
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield TensorRole(f"{PREDICTOR}{name}.weight", "norm", (hidden,))
    of_mlp = mlp_tensors(config) if config.experts is None else sparse_tensors(config)
    for tensor in (*norm_tensors(config), *attention_tensors(config), *of_mlp):
        yield in_layer(config.num_layers, tensor)


def mtp_name(name: str, config: ModelConfig) -> str:
    """For files whose names of that layer begin with ``mtp.``."""
    if not name.startswith(_PREDICTOR_LAYER):
        return name
    return f"model.layers.{config.num_layers}.{name.removeprefix(_PREDICTOR_LAYER)}"


def nextn_name(name: str, config: ModelConfig) -> str:
    """For files that have that layer behind the model's own."""
    layer = f"model.layers.{config.num_layers}."
    stem, _, kind = name.removeprefix(layer).rpartition(".")
    if not name.startswith(layer) or stem not in _NEXTN_NAMES:
        return name
    return f"{_NEXTN_NAMES[stem]}.{kind}"


def gguf_nextn_name(name: str, config: ModelConfig) -> str | None:
    """``blk.{num_layers}.nextn.eh_proj.weight`` -> ``mtp.fc.weight``; ``None`` for any other tensor
    of a GGUF file: those of the layer itself are called like those of the layers before it."""
    start = f"blk.{config.num_layers}.nextn."
    stem, _, kind = name.removeprefix(start).rpartition(".")
    own = _NEXTN_NAMES.get(stem.replace("shared_head_", "shared_head."))
    return f"{own}.{kind}" if own is not None and name.startswith(start) else None


def has_gguf_predictor(config: ModelConfig, names: Container[str]) -> bool:
    """Files may count the layer by a key and lack it."""
    return f"blk.{config.num_layers}.nextn.eh_proj.weight" in names


def with_predictor_layer(config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        num_layers=config.num_layers + 1,
        mixers=(*config.mixer_kinds, "attention"),
        mlps=(*config.mlp_kinds, "dense" if config.experts is None else "sparse"),
    )


def lone_predictor_layer(config: ModelConfig) -> ModelConfig:
    mlp: MlpKind = "dense" if config.experts is None else "sparse"
    return replace(config, num_layers=1, mixers=("attention",), mlps=(mlp,), delta=None)
