"""Llama 4, text: most layers attend within chunks of the context, and to rows whose heads are
rotated and normed; the others see all, rotate nothing, and sharpen their scores as the context
grows. Its experts are chosen by sigmoids, which weigh their inputs.
"""

from __future__ import annotations

from typing import Any

from inference.models.config import MixerKind, MlpKind, ModelConfig, QueryGrowth
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    LEFT_OUT,
    Json,
    optional_size,
    positive_integer,
    read_llama,
    repeated,
    text_config,
)
from inference.models.families.hub_config import hub_name as nested_name
from inference.models.families.mixture import experts_of, gguf_mixture
from inference.protocol.load_errors import BadFileError

NESTED_DEFAULTS: dict[str, Any] = {
    "model_type": "llama4_text",
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "num_local_experts": 16,
    "attention_chunk_size": 8192,
}
PERIOD = 4
"""The last of so many layers sees all and rotates nothing, where config.json does not list them."""
CHUNK_TOKENS = GROWTH_POSITIONS = 8192
GROWTH_BETA = 0.1
"""GGUF has no keys for these: every published model's are the same."""
UNNORMED_EXPERTS = 128
"""Maverick's, whose queries and keys have no norm. GGUF has no key for that either."""


def read_config(config: Json, generation: Json) -> ModelConfig:
    text = {"rms_norm_eps": 1e-5, **text_config(config, NESTED_DEFAULTS)}
    num_layers = positive_integer(text, "num_hidden_layers")
    is_rotated = text.get("no_rope_layers")  # by what it holds: 1 where a layer has it
    period = optional_size(text, "no_rope_layer_interval", PERIOD)
    mixers = _mixers(num_layers, period)
    if is_rotated:
        mixers = tuple("chunked" if rotated else "unrotated" for rotated in is_rotated)
    _check_layer_types(text, mixers)
    growth = None
    if text.get("attn_temperature_tuning", True):
        growth = _growth(
            float(text.get("attn_scale", GROWTH_BETA)),
            optional_size(text, "floor_scale", GROWTH_POSITIONS),
        )
    return read_llama(
        {"rope_theta": 500_000.0, **text}
        | {"intermediate_size": positive_integer(text, "intermediate_size_mlp")},
        generation,
        has_plain_qk_norm=bool(text.get("use_qk_norm", True)),
        is_rope_interleaved=True,
        mixers=mixers,
        chunk_tokens=positive_integer(text, "attention_chunk_size"),
        query_growth=growth,
        mlps=_mlps(text, num_layers),
        experts=experts_of(
            {"num_experts_per_tok": 1, **text},
            num_experts=positive_integer(text, "num_local_experts"),
            intermediate_size=positive_integer(text, "intermediate_size"),
            scoring="sigmoid",
            weighs_inputs=True,
            normalizes=False,
            shared_intermediate_size=positive_integer(text, "intermediate_size"),
            gates_shared=False,
        ),
    )


def _mixers(num_layers: int, period: int) -> tuple[MixerKind, ...]:
    return repeated(num_layers, period, others="chunked", last="unrotated")


def _growth(beta: float, positions: int) -> QueryGrowth:
    """Positions are counted from 1."""
    return QueryGrowth(beta=beta, positions=positions, offset=1, of_unrotated=True)


def _check_layer_types(config: Json, mixers: tuple[MixerKind, ...]) -> None:
    names = {"chunked": "chunked_attention", "unrotated": "full_attention"}
    listed = config.get("layer_types")
    if listed and list(listed) != [names[kind] for kind in mixers]:
        raise BadFileError(
            "layers that rotate nothing within chunks, or rotate in the whole context, are not "
            "supported in this architecture"
        )


def _mlps(config: Json, num_layers: int) -> tuple[MlpKind, ...]:
    step = optional_size(config, "interleave_moe_layer_step", 1)
    listed = config.get("moe_layers")
    sparse = set(range(step - 1, num_layers, step) if listed is None else listed)
    return tuple("sparse" if index in sparse else "dense" for index in range(num_layers))


def read_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    mixture = gguf_mixture(
        keys, normalizes=False, scoring="sigmoid", weighs_inputs=True, gates_shared=False
    )
    return read_decoder_gguf(
        keys,
        model_type,
        has_plain_qk_norm=mixture["experts"].num_experts != UNNORMED_EXPERTS,
        is_rope_interleaved=True,
        mixers=_mixers(keys.integer("block_count"), PERIOD),
        chunk_tokens=CHUNK_TOKENS,
        query_growth=_growth(GROWTH_BETA, GROWTH_POSITIONS),
        **mixture,
    )


def hub_name(name: str) -> str:
    name = nested_name(name).replace(".feed_forward.", ".mlp.")
    return name.replace(".mlp.router.", ".mlp.gate.")


LLAMA4 = Family(
    model_types=("llama4_text", "llama4"),
    gguf_architectures=("llama4",),
    read_config=read_config,
    read_gguf=read_gguf,
    hub_name=hub_name,
    has_transposed_experts=True,
    left_out=LEFT_OUT,
)
FAMILIES = (LLAMA4,)
