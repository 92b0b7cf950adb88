"""The tensors of a decoder whose layers are attention and a gated MLP: by Hugging Face's names,
with their roles and shapes, and by GGUF's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inference.models.config import ModelConfig
from inference.models.families.family import GGUFNames, Role, Section, TensorRole
from inference.models.families.layer_names import LayerNames

DEFAULT_NAMES = LayerNames()
DECODER = "inference.models.decoder:DecoderModel"
"""What builds a model of such layers."""

MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
MLP_NAMES = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
DECODER_NAMES = GGUFNames(model=MODEL_NAMES, layer=ATTENTION_NAMES | MLP_NAMES)


def decoder_tensors(config: ModelConfig, names: LayerNames = DEFAULT_NAMES) -> Iterator[TensorRole]:
    """The tensors of a decoder that has nothing else in its layers."""
    yield from outer_tensors(config)
    for index in range(config.num_layers):
        for tensor in (
            *norm_tensors(config, names),
            *attention_tensors(config, names),
            *mlp_tensors(config, names),
        ):
            yield in_layer(index, tensor)


def outer_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """The tensors of a decoder around its layers."""
    table = config.vocab_size, config.hidden_size
    tokens = (Section("vocabulary", config.vocab_size),)
    yield TensorRole("model.embed_tokens.weight", "embedding", table, sections=tokens)
    yield from _norm("model.norm", config)
    if not config.tie_embeddings:
        yield TensorRole("lm_head.weight", "head", table, sections=tokens)


def in_layer(index: int, tensor: TensorRole) -> TensorRole:
    """``tensor`` with its whole name."""
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


def column(
    name: str, in_features: int, *sections: Section, has_bias: bool = False
) -> Iterator[TensorRole]:
    """A projection whose outputs are ``sections``. Its bias is split as they are."""
    role: Role = "column"
    features = sum(section.features for section in sections)
    yield TensorRole(f"{name}.weight", role, (features, in_features), sections=sections)
    if has_bias:
        yield TensorRole(f"{name}.bias", role, (features,), sections=sections)


def row(
    name: str, out_features: int, *sections: Section, has_bias: bool = False
) -> Iterator[TensorRole]:
    """A projection whose inputs are ``sections``."""
    features = sum(section.features for section in sections)
    yield TensorRole(f"{name}.weight", "row", (out_features, features), sections=sections)
    if has_bias:
        yield TensorRole(f"{name}.bias", "row_bias", (out_features,))


def _norm(name: str, config: ModelConfig) -> Iterator[TensorRole]:
    yield TensorRole(f"{name}.weight", "norm", (config.hidden_size,))
    if config.has_norm_bias:
        yield TensorRole(f"{name}.bias", "norm", (config.hidden_size,))
