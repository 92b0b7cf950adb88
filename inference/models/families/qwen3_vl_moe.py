"""Qwen3-VL with experts: qwen3_moe beside qwen3_vl's tower. Files stack its experts, as published
with their inputs first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from inference.models.config import ModelConfig
from inference.models.families.family import TensorRole
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import Json
from inference.models.families.mixture import MIXTURE_NAMES, gguf_mixture, mixture_tensors
from inference.models.families.qwen3_5 import text_config
from inference.models.families.qwen3_vl import QWEN3_VL
from inference.models.families.qwen_moe import read_qwen3
from inference.models.families.tower import read_vision, tower_tensors


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Reads a config; the family's routing always normalises. Raises ``BadFileError``."""
    text = text_config(config) | {"norm_topk_prob": True}
    return replace(read_qwen3(text, generation), vision=read_vision(config, text))


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """The text model. Raises ``BadFileError``."""
    return read_decoder_gguf(keys, "qwen3_vl_moe", **gguf_mixture(keys, normalizes=True))


def tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from mixture_tensors(config)
    if config.vision is not None:
        yield from tower_tensors(config.vision)


QWEN3_VL_MOE = replace(
    QWEN3_VL,
    name="qwen3_vl_moe",
    model_types=("qwen3_vl_moe", "qwen3_vl_moe_text"),
    gguf_architectures=("qwen3vlmoe",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=tensors,
    gguf_names=MIXTURE_NAMES,
    has_transposed_experts=True,
)
