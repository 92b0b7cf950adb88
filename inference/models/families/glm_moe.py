"""GLM-4.5 and later: a mixture of experts behind the first layers, chosen by their sigmoids and a
bias that only chooses, of the best groups where there are several, beside one that all rows go
through; half of each head is rotated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inference.models.config import MlpKind, ModelConfig
from inference.models.families.decoder_tensors import ATTENTION_NAMES, DECODER, MLP_NAMES
from inference.models.families.family import Family, GGUFNames, TensorRole
from inference.models.families.gguf_keys import (
    PREDICTING_LAYERS,
    GGUFKeys,
    read_decoder_gguf,
)
from inference.models.families.gguf_keys import rotary_dim as rotary_dim_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
    rotary_dim,
)
from inference.models.families.mixture import (
    EXPERT_NAMES,
    MIXTURE_NAMES,
    experts_of,
    gguf_mixture,
    groups_of,
    mixture_tensors,
)
from inference.models.families.predictor import nextn_name, predictor_tensors

SHARED = ".mlp.shared_experts."
NAMES = GGUFNames(
    model=MIXTURE_NAMES.model,
    layer=ATTENTION_NAMES
    | MLP_NAMES
    | EXPERT_NAMES
    | {
        "post_attention_norm": "post_attention_layernorm",
        "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    },
)


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    defaults = {"n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True}
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("attention_bias", False)),
        qk_norm=bool(config.get("use_qk_norm", False)),
        rotary_dim=rotary_dim(config, default=0.5),
        **routed_fields(defaults | dict(config)),
    )


def routed_fields(config: Json, **declared: Any) -> dict[str, Any]:
    """Fields of ``ModelConfig``: which layers are sparse and what of, by the keys of DeepSeek's
    kin. ``declared``: fields of ``ExpertsConfig`` that the family knows better. Raises
    ``BadFileError``."""
    inner = positive_integer(config, "moe_intermediate_size")
    num_dense = int(config.get("first_k_dense_replace") or 0)
    num_layers = positive_integer(config, "num_hidden_layers")
    mlps: tuple[MlpKind, ...] = tuple(
        "dense" if index < num_dense else "sparse" for index in range(num_layers)
    )
    common: dict[str, Any] = {
        "num_experts": positive_integer(config, "n_routed_experts"),
        "intermediate_size": inner,
        "scoring": "sigmoid",
        "normalizes": bool(config.get("norm_topk_prob")),
        "shared_intermediate_size": inner * int(config.get("n_shared_experts") or 0) or None,
        "gates_shared": False,
        "has_choice_bias": True,
        "weight_scale": float(config.get("routed_scaling_factor") or 1.0),
        **groups_of(config),
    }
    experts = experts_of(config, **(common | declared))
    return {"mlps": mlps, "experts": experts}


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Layers that predict further tokens come last and are left out. Raises ``BadFileError``."""
    num_layers = keys.integer("block_count") - (keys.find(PREDICTING_LAYERS) or 0)
    mixture = gguf_mixture(keys, normalizes=True)
    return read_decoder_gguf(
        keys,
        "glm4_moe",
        num_layers=num_layers,
        rotary_dim=rotary_dim_gguf(keys),
        **mixture | {"mlps": mixture["mlps"][:num_layers]},
    )


def tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from mixture_tensors(config)
    if config.has_predictor:
        yield from predictor_tensors(config)


def hub_name(name: str) -> str:
    return name.replace(SHARED, ".mlp.shared_expert.")


GLM4_MOE = Family(
    name="GLM-4.5",
    model_types=("glm4_moe",),
    gguf_architectures=("glm4moe",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=tensors,
    hub_name=hub_name,
    predictor_name=nextn_name,
    gguf_names=NAMES,
    builder=DECODER,
)
