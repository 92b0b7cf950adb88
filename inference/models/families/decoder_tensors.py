"""The tensors of a decoder whose layers are attention and a gated MLP: by Hugging Face's names,
with their roles and shapes, and by GGUF's names."""

from __future__ import annotations

from collections.abc import Iterator

from inference.models.config import ModelConfig
from inference.models.families.family import GGUFNames, Role, TensorRole
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
    """Of a decoder that has nothing else in its layers."""
    yield from outer_tensors(config)
    for index in range(config.num_layers):
        for tensor in (
            *norm_tensors(config, names),
            *attention_tensors(config, names),
            *mlp_tensors(config, names),
        ):
            yield in_layer(index, tensor)


def outer_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """Of a decoder around its layers."""
    table = config.vocab_size, config.hidden_size
    yield TensorRole("model.embed_tokens.weight", "embedding", table)
    yield from _norm("model.norm", config)
    if not config.tie_embeddings:
        yield TensorRole("lm_head.weight", "head", table)


def in_layer(index: int, tensor: TensorRole) -> TensorRole:
    """``tensor`` with its whole name."""
    prefix = f"model.layers.{index}."
    return TensorRole(
        prefix + tensor.name,
        tensor.role,
        tensor.shape,
        tuple(prefix + part for part in tensor.parts),
    )


def norm_tensors(config: ModelConfig, names: LayerNames = DEFAULT_NAMES) -> Iterator[TensorRole]:
    for name in names.norms:
        yield from _norm(name, config)


def attention_tensors(
    config: ModelConfig, names: LayerNames = DEFAULT_NAMES
) -> Iterator[TensorRole]:
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    queries = 2 * heads if config.has_output_gate else heads
    widths = (queries, kv, kv) if len(names.qkv) == 3 else (queries + 2 * kv,)
    for name, features in zip(names.qkv, widths, strict=True):
        yield from projection(name, "column", (features, hidden), has_bias=config.qkv_bias)
    yield from projection(names.output, "row", (hidden, heads), has_bias=config.output_bias)
    if config.has_sinks:
        yield TensorRole(names.sinks, "norm", (config.num_heads,))
    if config.qk_norm:
        is_wide = config.is_qk_norm_wide
        for name, features in ((names.query_norm, heads), (names.key_norm, kv)):
            yield TensorRole(f"{name}.weight", "norm", (features if is_wide else config.head_dim,))


def mlp_tensors(config: ModelConfig, names: LayerNames = DEFAULT_NAMES) -> Iterator[TensorRole]:
    hidden, inner, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    width = (1 + config.is_gated) * inner // len(names.gate_up)
    for name in names.gate_up:
        yield from projection(name, "column", (width, hidden), has_bias=has_bias)
    yield from projection(names.down, "row", (hidden, inner), has_bias=has_bias)


def projection(
    name: str, role: Role, shape: tuple[int, int], *, has_bias: bool = False
) -> Iterator[TensorRole]:
    """Its bias is split as its outputs are."""
    yield TensorRole(f"{name}.weight", role, shape)
    if has_bias:
        yield TensorRole(f"{name}.bias", "norm" if role == "row" else role, shape[:1])


def _norm(name: str, config: ModelConfig) -> Iterator[TensorRole]:
    yield TensorRole(f"{name}.weight", "norm", (config.hidden_size,))
    if config.has_norm_bias:
        yield TensorRole(f"{name}.bias", "norm", (config.hidden_size,))
