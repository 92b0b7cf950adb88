"""Qwen2.5-VL, Qwen3-VL and Qwen3-VL with experts: qwen2, qwen3 and qwen3_moe beside a vision tower.

Qwen2.5-VL's rotary frequencies turn in blocks by time, height and width. Its published checkpoints
have the text model's keys in config.json itself, and its tensors beside those of ``visual.*``;
newer ones nest both, as the others' do. Some blocks of Qwen3-VL's tower are added to the decoder's
first layers; files stack its experts, as published with their inputs first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families import llama
from inference.models.families.family import Family
from inference.models.families.gguf_keys import read_decoder_gguf
from inference.models.families.hub_config import Json, read_llama
from inference.models.families.mixture import read_mixture_gguf
from inference.models.families.mixtures import read_qwen3_moe
from inference.models.families.qwen3_5 import hub_name, text_config
from inference.models.families.tower import TOWER, VISION
from inference.models.families.tower_gguf import QWEN2_5_PROJECTOR, QWEN3_PROJECTOR
from inference.models.families.tower_hub import read_vision, read_windowed_vision

PUBLISHED_TOWER = "visual."
ROPE_KEYS = ("rope_parameters", "rope_scaling")


def read_qwen2_5_vl(config: Json, generation: Json) -> ModelConfig:
    text = _unscaled(text_config(config) | {"model_type": "qwen2"})
    return replace(
        llama.read_config(text, generation),
        architecture=str(config["model_type"]),
        vision=read_windowed_vision(config, text),
    )


def _unscaled(text: dict[str, Any]) -> dict[str, Any]:
    """Replaces ``mrope`` by the default scaling: for text alone the two rotary embeddings are the
    same."""
    for key in ROPE_KEYS:
        rope = text.get(key)
        if isinstance(rope, dict) and "mrope" in (rope.get("rope_type"), rope.get("type")):
            text[key] = rope | {"rope_type": "default", "type": "default"}
    return text


def qwen2_5_vl_name(name: str) -> str:
    return f"model.{name}" if name.startswith(PUBLISHED_TOWER) else hub_name(name)


def read_qwen3_vl(config: Json, generation: Json) -> ModelConfig:
    text = text_config(config)
    return read_llama(text, generation, qk_norm=True, vision=read_vision(config, text))


def read_qwen3_vl_moe(config: Json, generation: Json) -> ModelConfig:
    """The family's routing always normalises. Raises ``BadFileError``."""
    text = text_config(config) | {"norm_topk_prob": True}
    return replace(read_qwen3_moe(text, generation), vision=read_vision(config, text))


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl", "qwen2_5_vl_text"),
    gguf_architectures=("qwen2vl",),
    read_config=read_qwen2_5_vl,
    read_gguf=partial(llama.read_gguf, model_type="qwen2_5_vl"),
    hub_name=qwen2_5_vl_name,
    left_out={TOWER: VISION},
    gguf_projectors=(QWEN2_5_PROJECTOR,),
)
QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl", "qwen3_vl_text"),
    gguf_architectures=("qwen3vl",),
    read_config=read_qwen3_vl,
    read_gguf=partial(read_decoder_gguf, model_type="qwen3_vl"),
    hub_name=hub_name,
    left_out={TOWER: VISION},
    gguf_projectors=(QWEN3_PROJECTOR,),
)
QWEN3_VL_MOE = replace(
    QWEN3_VL,
    name="qwen3_vl_moe",
    model_types=("qwen3_vl_moe", "qwen3_vl_moe_text"),
    gguf_architectures=("qwen3vlmoe",),
    read_config=read_qwen3_vl_moe,
    read_gguf=partial(read_mixture_gguf, model_type="qwen3_vl_moe", normalizes=True),
    has_transposed_experts=True,
)
FAMILIES = (QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE)
