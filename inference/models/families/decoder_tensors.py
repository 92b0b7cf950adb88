"""The tensors of a decoder whose layers are attention and a gated MLP: by Hugging Face's names,
with their roles and shapes, and by GGUF's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inference.models.config import ModelConfig
from inference.models.families.family import GGUFNames, Role, TensorRole

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


def decoder_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """Of a decoder that has nothing else in its layers."""
    yield from outer_tensors(config)
    for index in range(config.num_layers):
        for tensor in (*norm_tensors(config), *attention_tensors(config), *mlp_tensors(config)):
            yield in_layer(index, tensor)


def outer_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """Of a decoder around its layers."""
    table = config.vocab_size, config.hidden_size
    yield TensorRole("model.embed_tokens.weight", "embedding", table)
    yield TensorRole("model.norm.weight", "norm", (config.hidden_size,))
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


def norm_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield TensorRole(f"{name}.weight", "norm", (config.hidden_size,))


def attention_tensors(config: ModelConfig, prefix: str = "self_attn") -> Iterator[TensorRole]:
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    for name, features in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
        shape = features, hidden
        yield from projection(f"{prefix}.{name}", "column", shape, has_bias=config.qkv_bias)
    yield from projection(f"{prefix}.o_proj", "row", (hidden, heads), has_bias=config.output_bias)
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            yield TensorRole(f"{prefix}.{name}.weight", "norm", (config.head_dim,))


def mlp_tensors(
    config: ModelConfig, prefix: str = "mlp", intermediate_size: int | None = None
) -> Iterator[TensorRole]:
    hidden, inner = config.hidden_size, intermediate_size or config.intermediate_size
    for name in ("gate_proj", "up_proj"):
        shape = inner, hidden
        yield from projection(f"{prefix}.{name}", "column", shape, has_bias=config.mlp_bias)
    yield from projection(f"{prefix}.down_proj", "row", (hidden, inner), has_bias=config.mlp_bias)


def projection(
    name: str, role: Role, shape: tuple[int, int], *, has_bias: bool = False
) -> Iterable[TensorRole]:
    """Its bias is split as its outputs are."""
    yield TensorRole(f"{name}.weight", role, shape)
    if has_bias:
        yield TensorRole(f"{name}.bias", "norm" if role == "row" else role, shape[:1])
