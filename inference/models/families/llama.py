"""Decoders of llama's layers: llama 1-3.x and smollm, mistral, qwen2 and qwen3, Seed-OSS, SmolLM3,
ERNIE 4.5, Ministral 3, whose queries grow with their position, and Phi-3 and Phi-4 (dense) with
fused projections. Beside a vision tower: a llama (Idefics3, SmolVLM), and a mistral or a Ministral
3 (Mistral Small 3.1 and later, Ministral 3, Pixtral)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import MixerKind, ModelConfig, QueryGrowth
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import (
    LLAMA_BIASES,
    Json,
    check_activation,
    check_no_window,
    positive_integer,
    read_decoder,
    read_llama,
    repeated,
    rope_parameters,
    rotary_dim,
    text_config,
)
from inference.models.families.mixture import read_mixture_gguf
from inference.models.families.roles import LayerNames
from inference.models.families.tower import TOWER, is_rotated, towered_name
from inference.models.families.tower_gguf import IDEFICS3_PROJECTOR, PIXTRAL_PROJECTOR
from inference.models.families.tower_hub import read_idefics3_vision, read_pixtral_vision
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import BadFileError

PHI3_NAMES = LayerNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
SMOLLM3_PERIOD = 4
"""The last of so many layers rotates nothing, where config.json does not list them."""
ERNIE_DEFAULTS = {"rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
IDEFICS3_DEFAULTS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def read_config(config: Json, generation: Json) -> ModelConfig:
    model_type, has_bias = config["model_type"], bool(config.get("attention_bias", False))
    return read_llama(
        config,
        generation,
        qkv_bias=has_bias or model_type == "qwen2",
        qk_norm=model_type == "qwen3",
        sliding_window=_sliding_window(config),
    )


def _sliding_window(config: Json) -> int | None:
    """qwen2 and qwen3 declare a window that only ``use_sliding_window`` switches on."""
    window = config.get("sliding_window")
    switched_off = config["model_type"] != "mistral" and not config.get("use_sliding_window")
    if window is None or switched_off:
        return None
    kinds = set(config.get("layer_types") or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"} or config.get("max_window_layers"):
        raise BadFileError("a sliding window on some of the layers is not supported")
    return int(window)


def read_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    """Mixtral's files call themselves llama's."""
    if model_type == "llama" and keys.find("expert_count"):
        return read_mixture_gguf(keys, "mixtral", normalizes=True)
    return read_decoder_gguf(keys, model_type, is_windowed=True)


def interleaved_heads(name: str, config: ModelConfig) -> int | None:
    """llama.cpp's converter writes a llama's queries and keys in pairs, and Pixtral's."""
    if config.vision is not None and config.vision.kind == "pixtral" and is_rotated(name):
        return config.vision.num_heads
    if ".self_attn.q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".self_attn.k_proj." in name else None


def read_idefics3(config: Json, generation: Json) -> ModelConfig:
    """The outer config declares whether embeddings are tied."""
    text = text_config(config, IDEFICS3_DEFAULTS)
    text["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    if (model_type := text["model_type"]) != "llama":
        raise BadFileError(f"text_config has the architecture {model_type!r}, not a llama's")
    vision = read_idefics3_vision(config, text)
    return replace(read_config(text, generation), vision=vision)


def read_smollm3(config: Json, generation: Json) -> ModelConfig:
    check_no_window(config)
    num_layers = int(config["num_hidden_layers"])
    mixers = _smollm3_mixers(
        num_layers, int(config.get("no_rope_layer_interval") or SMOLLM3_PERIOD)
    )
    if is_rotated := config.get("no_rope_layers"):  # by what it holds: 1 where a layer has it
        mixers = tuple("attention" if rotated else "unrotated" for rotated in is_rotated)
    defaults = {"rope_theta": 2_000_000.0, "tie_word_embeddings": True}
    return read_llama(config, generation, defaults=defaults, mixers=mixers[:num_layers])


def read_smollm3_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    mixers = _smollm3_mixers(keys.integer("block_count"), SMOLLM3_PERIOD)
    return read_decoder_gguf(keys, model_type, mixers=mixers)


def _smollm3_mixers(num_layers: int, period: int) -> tuple[MixerKind, ...]:
    return repeated(num_layers, period, others="attention", last="unrotated")


def read_phi3(config: Json, generation: Json) -> ModelConfig:
    check_activation(config, "silu", "swish")
    window = config.get("sliding_window")
    found = read_decoder(
        config, generation, rotary_dim=rotary_dim(config), sliding_window=window or None
    )
    scaling = found.rope_scaling
    if scaling is not None and 2 * len(scaling.long_divisors) != found.rotary_dim:
        raise BadFileError(
            f"config.json scales {len(scaling.long_divisors)} frequencies, and heads have "
            f"{found.rotary_dim} features that are rotated in pairs"
        )
    return found


def _llama_like(model_type: str, **own: Any) -> Family:
    return Family(
        model_types=(model_type,),
        gguf_architectures=(model_type,),
        read_config=read_config,
        read_gguf=read_gguf,
        **own,
    )


LLAMA = _llama_like(
    "llama",
    hub_name=towered_name,
    left_out={TOWER: "images"},
    interleaved_heads=interleaved_heads,
    gguf_projectors=(IDEFICS3_PROJECTOR, PIXTRAL_PROJECTOR),
)
IDEFICS3 = replace(
    LLAMA,
    model_types=("idefics3", "smolvlm"),
    gguf_architectures=(),
    read_config=read_idefics3,
    gguf_projectors=(IDEFICS3_PROJECTOR,),
)
MISTRAL = _llama_like("mistral", hub_name=towered_name, left_out={TOWER: "images"})
QWEN2, QWEN3 = _llama_like("qwen2"), _llama_like("qwen3")
SEED_OSS = Family(
    model_types=("seed_oss",),
    gguf_architectures=("seed_oss",),
    read_config=partial(
        read_llama,
        defaults={"head_dim": 128, "attention_bias": True},
        biases=LLAMA_BIASES | {"output_bias": "attention_out_bias"},
    ),
)
ERNIE4_5 = Family(
    model_types=("ernie4_5",),
    gguf_architectures=("ernie4_5",),
    read_config=partial(
        read_llama,
        defaults=ERNIE_DEFAULTS | {"head_dim": 128},
        biases=dict.fromkeys(LLAMA_BIASES, "use_bias"),
        is_rope_interleaved=True,
    ),
    read_gguf=partial(read_decoder_gguf, is_rope_interleaved=True),
)
SMOLLM3 = Family(
    model_types=("smollm3",),
    gguf_architectures=("smollm3",),
    read_config=read_smollm3,
    read_gguf=read_smollm3_gguf,
    interleaved_heads=interleaved_heads,
)
PHI3 = Family(
    model_types=("phi3",),
    gguf_architectures=("phi3",),
    read_config=read_phi3,
    read_gguf=partial(read_decoder_gguf, is_windowed=True, is_rotated_in_part=True),
    layer_names=PHI3_NAMES,
)


MISTRAL3_DEFAULTS: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 131_072,
    "hidden_size": 5120,
    "intermediate_size": 32_768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e9,
    "tie_word_embeddings": False,
}
"""Those of Mistral Small 3.1, whose config leaves them out."""
PIXTRAL_DEFAULTS: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": None,
}
"""Those of Pixtral 12B, whose config leaves them out."""


def read_ministral3(config: Json, generation: Json) -> ModelConfig:
    if config.get("sliding_window") is not None:
        raise BadFileError("a sliding window of ministral3 is not supported")
    rope = rope_parameters(config)
    growth = None
    if beta := rope.get("llama_4_scaling_beta"):
        positions = positive_integer(rope, "original_max_position_embeddings")
        growth = QueryGrowth(beta=float(beta), positions=positions)
    return read_llama(config, generation, query_growth=growth)


def read_mistral3(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config, MISTRAL3_DEFAULTS)
    readers = {"mistral": read_config, "ministral3": read_ministral3}
    if (model_type := text["model_type"]) not in readers:
        raise BadFileError(f"text_config has the architecture {model_type!r}, not a mistral's")
    read = readers[model_type](text, generation)
    return replace(read, vision=_pixtral_vision(config, text, has_projector_bias=False))


def read_pixtral(config: Json, generation: Json) -> ModelConfig:
    """Refuses a LLaVA model with any other tower."""
    tower = config.get("vision_config")
    kind = tower.get("model_type") if isinstance(tower, dict) else None
    if kind != "pixtral":
        raise BadFileError(f"vision_config has the architecture {kind!r}, not 'pixtral'")
    text = text_config(config, PIXTRAL_DEFAULTS)
    if (model_type := text["model_type"]) != "mistral":
        raise BadFileError(f"text_config has the architecture {model_type!r}, not a mistral's")
    vision = _pixtral_vision(config, text, has_projector_bias=True)
    return replace(read_config(text, generation), vision=vision)


def _pixtral_vision(config: Json, text: Json, *, has_projector_bias: bool) -> VisionConfig | None:
    tower = config.get("vision_config")
    if not isinstance(tower, dict) or tower.get("model_type", "pixtral") != "pixtral":
        return None
    config = {"spatial_merge_size": 1 if has_projector_bias else 2, **config}
    return read_pixtral_vision(config, text, has_projector_bias=has_projector_bias)


def read_ministral3_gguf(keys: GGUFKeys, model_type: str) -> ModelConfig:
    growth = None
    if beta := keys.number("attention.temperature_scale", 0.0):
        positions = keys.find("attention.temperature_length") or keys.integer(
            "rope.scaling.original_context_length"
        )
        growth = QueryGrowth(beta=beta, positions=positions)
    return read_decoder_gguf(keys, model_type, query_growth=growth)


MINISTRAL3 = replace(
    MISTRAL,
    model_types=("ministral3",),
    gguf_architectures=("mistral3",),
    read_config=read_ministral3,
    read_gguf=read_ministral3_gguf,
    interleaved_heads=interleaved_heads,
    gguf_projectors=(PIXTRAL_PROJECTOR,),
)
MISTRAL3: Family = replace(
    MISTRAL,
    model_types=("mistral3",),
    gguf_architectures=(),
    read_config=read_mistral3,
    gguf_projectors=(PIXTRAL_PROJECTOR,),
)
PIXTRAL: Family = replace(
    MISTRAL3,
    model_types=("llava",),
    read_config=read_pixtral,
)
"""LLaVA's layout, of which no other tower is computed."""
FAMILIES = (
    LLAMA,
    IDEFICS3,
    MISTRAL,
    MINISTRAL3,
    MISTRAL3,
    PIXTRAL,
    QWEN2,
    QWEN3,
    SEED_OSS,
    ERNIE4_5,
    SMOLLM3,
    PHI3,
)
