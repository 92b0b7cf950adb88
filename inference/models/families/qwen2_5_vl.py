"""Qwen2.5-VL: qwen2 beside a vision tower, whose rotary frequencies turn in blocks by time, height
and width. Published checkpoints have the text model's keys in config.json itself, and its tensors
beside those of ``visual.*``; newer ones nest both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families import llama
from inference.models.families.decoder_tensors import DECODER, DECODER_NAMES, decoder_tensors
from inference.models.families.family import Family, TensorRole
from inference.models.families.hub_config import Json
from inference.models.families.qwen3_5 import hub_name as nested_name
from inference.models.families.qwen3_5 import text_config
from inference.models.families.tower import TOWER, VISION, read_windowed_vision, windowed_tensors
from inference.models.families.tower_gguf import QWEN2_5_PROJECTOR

PUBLISHED_TOWER = "visual."
ROPE_KEYS = ("rope_parameters", "rope_scaling")


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
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


def tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from decoder_tensors(config)
    if config.vision is not None:
        yield from windowed_tensors(config.vision)


def hub_name(name: str) -> str:
    return f"model.{name}" if name.startswith(PUBLISHED_TOWER) else nested_name(name)


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl", "qwen2_5_vl_text"),
    gguf_architectures=("qwen2vl",),
    read_config=read_config,
    read_gguf=llama.read_gguf("qwen2_5_vl"),
    tensors=tensors,
    hub_name=hub_name,
    left_out={TOWER: VISION},
    gguf_names=DECODER_NAMES,
    gguf_projectors=(QWEN2_5_PROJECTOR,),
    features=frozenset({"prefix_reuse", "vision"}),
    builder=DECODER,
)
