"""Qwen3-VL: qwen3 beside a vision tower, some of whose blocks are added to the decoder's first
layers. Checkpoints nest it as Qwen3.5's do."""

from __future__ import annotations

from collections.abc import Iterator

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
    read_decoder,
)
from inference.models.families.qwen3_5 import hub_name, text_config
from inference.models.families.tower import TOWER, VISION, read_vision, tower_tensors
from inference.models.families.tower_gguf import QWEN3_PROJECTOR


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    text = text_config(config)
    check_activation(text, "silu", "swish")
    check_whole_rotary(text)
    has_bias = bool(text.get("attention_bias", False))
    return read_decoder(
        text,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=True,
        vision=read_vision(config, text),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """The text model: llama.cpp's converter puts the tower into a file of its own. Raises
    ``BadFileError``."""
    return read_decoder_gguf(keys, "qwen3_vl")


def tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from decoder_tensors(config)
    if config.vision is not None:
        yield from tower_tensors(config.vision)


QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl", "qwen3_vl_text"),
    gguf_architectures=("qwen3vl",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=tensors,
    hub_name=hub_name,
    left_out={TOWER: VISION},
    gguf_names=DECODER_NAMES,
    gguf_projectors=(QWEN3_PROJECTOR,),
    features=frozenset({"prefix_reuse", "vision"}),
    builder=DECODER,
)
