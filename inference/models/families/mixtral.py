"""mixtral: mistral's attention, and eight experts or so in every layer. Its GGUF files call
themselves llama's."""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER
from inference.models.families.family import Family
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
)
from inference.models.families.llama import interleaved_heads
from inference.models.families.mixture import MIXTURE_NAMES, experts_of, mixture_tensors


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    window = config.get("sliding_window")
    inner = positive_integer(config, "intermediate_size")
    return read_decoder(
        config,
        generation,
        sliding_window=None if window is None else int(window),
        experts=experts_of(config, intermediate_size=inner, normalizes=True),
        mlps=("sparse",) * positive_integer(config, "num_hidden_layers"),
    )


MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    gguf_shared=("llama",),
    read_config=read_config,
    tensors=mixture_tensors,
    gguf_names=MIXTURE_NAMES,
    interleaved_heads=interleaved_heads,
    builder=DECODER,
)
