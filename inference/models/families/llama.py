"""llama 1-3.x and smollm, mistral, qwen2 and qwen3: one decoder, with biases, norms of heads and a
window where config.json declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER, DECODER_NAMES, decoder_tensors
from inference.models.families.family import Family, TensorRole
from inference.models.families.gguf_keys import (
    GGUFKeys,
    read_decoder_gguf,
)
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    hub_name,
    read_decoder,
)
from inference.models.families.idefics3_tower import (
    IDEFICS3_PROJECTOR,
    idefics3_tensors,
    idefics3_tower_name,
)
from inference.models.families.mixture import gguf_mixture
from inference.models.families.pixtral_tower import (
    PIXTRAL_PROJECTOR,
    is_rotated,
    pixtral_tensors,
    pixtral_tower_name,
)
from inference.models.families.tower import TOWER
from inference.protocol.load_errors import BadFileError


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    model_type = config["model_type"]
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    has_bias = bool(config.get("attention_bias", False))
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias or model_type == "qwen2",
        output_bias=has_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=model_type == "qwen3",
        sliding_window=_sliding_window(config),
    )


def _sliding_window(config: Json) -> int | None:
    """One window for all layers, or none. qwen2 and qwen3 declare a window that only
    ``use_sliding_window`` switches on."""
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


def read_gguf(model_type: str) -> Callable[[GGUFKeys], ModelConfig]:
    return partial(_read_gguf, model_type)


def _read_gguf(model_type: str, keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    if model_type == "llama" and keys.find("expert_count"):
        return read_decoder_gguf(keys, "mixtral", **gguf_mixture(keys, normalizes=True))
    return read_decoder_gguf(keys, model_type, sliding_window=keys.find("attention.sliding_window"))


def interleaved_heads(name: str, config: ModelConfig) -> int | None:
    """llama.cpp's converter writes a llama's queries and keys in pairs, and Pixtral's."""
    if config.vision is not None and config.vision.kind == "pixtral" and is_rotated(name):
        return config.vision.num_heads
    if ".self_attn.q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".self_attn.k_proj." in name else None


def _relative(model_type: str) -> Family:
    return Family(
        name=model_type,
        model_types=(model_type,),
        gguf_architectures=(model_type,),
        read_config=read_config,
        read_gguf=read_gguf(model_type),
        tensors=decoder_tensors,
        gguf_names=DECODER_NAMES,
        builder=DECODER,
    )


def llama_name(name: str) -> str:
    """What the model calls a tensor of a safetensors file, which may be Idefics3's."""
    return idefics3_tower_name(name) or hub_name(name)


def llama_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from decoder_tensors(config)
    if config.vision is not None:
        of_tower = pixtral_tensors if config.vision.kind == "pixtral" else idefics3_tensors
        yield from of_tower(config.vision)


def mistral_name(name: str) -> str:
    """What the model calls a tensor of a safetensors file, which may have Pixtral's tower."""
    return pixtral_tower_name(name) or hub_name(name)


LLAMA = replace(
    _relative("llama"),
    hub_name=llama_name,
    left_out={TOWER: "images"},
    tensors=llama_tensors,
    interleaved_heads=interleaved_heads,
    gguf_projectors=(IDEFICS3_PROJECTOR, PIXTRAL_PROJECTOR),
)
MISTRAL = replace(
    _relative("mistral"),
    hub_name=mistral_name,
    left_out={TOWER: "images"},
    tensors=llama_tensors,
)
QWEN2 = _relative("qwen2")
QWEN3 = _relative("qwen3")
