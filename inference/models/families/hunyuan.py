"""Hunyuan, dense and with experts: llama's layers with a norm of each rotated head, and a rotary
base that is stretched once and for all. Every layer has experts, and a shared one."""

from __future__ import annotations

from functools import partial
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import Family, renaming
from inference.models.families.gguf_keys import read_decoder_gguf
from inference.models.families.hub_config import (
    Json,
    optional_size,
    positive_integer,
    read_llama,
    rope_parameters,
    same_in_all_layers,
)
from inference.models.families.mixture import experts_of, read_mixture_gguf
from inference.models.families.roles import LayerNames
from inference.protocol.load_errors import BadFileError

NAMES = LayerNames(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm")
NOT_BUILT = {
    "use_cla": "layers that share keys and values",
    "use_mla": "latent attention",
    "moe_layer_num_skipped": "dense layers before those with experts",
    "position_embedding_xdrope": "rotary embedding of several axes",
}
PER_LAYER = ("moe_topk", "num_experts", "moe_intermediate_size", "num_shared_expert")


def read_moe(config: Json, generation: Json) -> ModelConfig:
    """``intermediate_size`` is the shared expert's width, and the others' default. Lists name each
    layer's number: layers that differ are refused."""
    own = {key: same_in_all_layers(config, key) for key in PER_LAYER if key in config}
    inner = positive_integer(config, "intermediate_size")
    num_shared = optional_size(own, "num_shared_expert", 1)
    experts = experts_of(
        {"num_experts_per_tok": own.get("moe_topk"), "num_experts": own.get("num_experts")},
        intermediate_size=optional_size(own, "moe_intermediate_size", inner),
        normalizes=True,
        shared_intermediate_size=inner * num_shared,
        gates_shared=False,
    )
    num_layers = positive_integer(config, "num_hidden_layers")
    return read_config(config, generation, experts=experts, mlps=("sparse",) * num_layers)


def read_config(config: Json, generation: Json, **declared: Any) -> ModelConfig:
    for key, words in NOT_BUILT.items():
        if config.get(key):
            raise BadFileError(f"{words} ({key}) are not supported in this architecture")
    width = config.get("head_dim") or config.get("attention_head_dim")
    return read_llama(
        {"rms_norm_eps": 1e-5, **config, "head_dim": width} | stretched(config, width),
        generation,
        qk_norm=bool(config.get("use_qk_norm", True)),
        is_qk_norm_after_rotation=True,
        **declared,
    )


def stretched(config: Json, head_dim: int | None) -> dict[str, Any]:
    """The replacement of config.json's rotary embedding: files call it ``dynamic`` and mean a base
    that ``alpha`` stretches, whatever a sequence's length. Empty where there is no such number."""
    rope = rope_parameters(config)
    alpha = rope.get("alpha")
    if rope.get("rope_type", rope.get("type")) != "dynamic" or not alpha:
        return {}
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha <= 0:
        raise BadFileError(f"the alpha of rope scaling dynamic is {alpha!r}, not a number above 0")
    heads = positive_integer(config, "num_attention_heads")
    width = head_dim or positive_integer(config, "hidden_size") // heads
    if width < 3:
        raise BadFileError(f"heads of {width} features have no rotary base to stretch")
    base = float(rope.get("rope_theta") or 10_000.0) * float(alpha) ** (width / (width - 2))
    return {"rope_scaling": None, "rope_parameters": {"rope_theta": base}}


HUNYUAN_DENSE = Family(
    model_types=("hunyuan_v1_dense",),
    gguf_architectures=("hunyuan-dense",),
    read_config=read_config,
    # llama.cpp's converter has stretched the base.
    read_gguf=partial(read_decoder_gguf, is_qk_norm_after_rotation=True),
    layer_names=NAMES,
)
HUNYUAN_MOE = Family(
    model_types=("hunyuan_v1_moe",),
    gguf_architectures=("hunyuan-moe",),
    read_config=read_moe,
    read_gguf=partial(
        read_mixture_gguf,
        normalizes=True,
        is_qk_norm_after_rotation=True,
    ),
    layer_names=NAMES,
    hub_name=renaming({".mlp.gate.wg.": ".mlp.gate.", ".mlp.shared_mlp.": ".mlp.shared_expert."}),
)
FAMILIES = (HUNYUAN_DENSE, HUNYUAN_MOE)
