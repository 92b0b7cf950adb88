"""GLM-4: half of each head is rotated, neighbours together; GLM-4-0414 also norms what each part
adds. GLM-4.5 and later have a mixture of experts behind the first layers, chosen by their sigmoids
and a bias that only chooses, of the best groups where there are several, beside one that all rows
go through."""

from __future__ import annotations

from functools import partial

from inference.models.config import ModelConfig
from inference.models.families.family import Family, renaming
from inference.models.families.gguf_keys import PREDICTING_LAYERS, GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import Json, check_activation, read_decoder, rotary_dim
from inference.models.families.mixture import SHARED_EXPERTS, gguf_mixture, routed_fields
from inference.models.families.predictor import nextn_name
from inference.models.families.roles import LayerNames

FUSED = LayerNames(gate_up=("mlp.gate_up_proj",))
NORMED_AFTER = LayerNames(
    gate_up=("mlp.gate_up_proj",),
    mixed_norm="post_self_attn_layernorm",
    mlp_added_norm="post_mlp_layernorm",
)


def read_config(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    return read_decoder(
        config,
        generation,
        qkv_bias=bool(config.get("attention_bias", True)),
        rotary_dim=rotary_dim(config, default=0.5),
        is_rope_interleaved=True,
    )


def read_moe(config: Json, generation: Json) -> ModelConfig:
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


def read_moe_gguf(keys: GGUFKeys) -> ModelConfig:
    """Layers that predict further tokens come last and are left out. Raises ``BadFileError``."""
    num_layers = keys.integer("block_count") - (keys.find(PREDICTING_LAYERS) or 0)
    mixture = gguf_mixture(keys, normalizes=True)
    return read_decoder_gguf(
        keys,
        "glm4_moe",
        num_layers=num_layers,
        is_rotated_in_part=True,
        **mixture | {"mlps": mixture["mlps"][:num_layers]},
    )


GLM = Family(
    name="GLM-4",
    model_types=("glm",),
    read_config=read_config,
    layer_names=FUSED,
)
GLM4 = Family(
    name="GLM-4-0414",
    model_types=("glm4",),
    gguf_architectures=("glm4",),
    read_config=read_config,
    read_gguf=partial(
        read_decoder_gguf, model_type="glm4", is_rotated_in_part=True, is_rope_interleaved=True
    ),
    layer_names=NORMED_AFTER,
)
GLM4_MOE = Family(
    name="GLM-4.5",
    model_types=("glm4_moe",),
    gguf_architectures=("glm4moe",),
    read_config=read_moe,
    read_gguf=read_moe_gguf,
    hub_name=renaming(SHARED_EXPERTS),
    predictor_name=nextn_name,
)
FAMILIES = (GLM, GLM4, GLM4_MOE)
