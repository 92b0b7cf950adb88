"""Qwen3.5's text model: a hybrid of Gated DeltaNet and gated attention, with a dense MLP.

Checkpoints nest it beside a tower for pictures: config.json has it under ``text_config``, and its
tensors are called ``model.language_model.*``. A text's three rotary positions are all the same, so
that interleaving them changes nothing.
"""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.delta_config import DeltaNames
from inference.models.families.decoder_tensors import DECODER, MLP_NAMES
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, check_no_experts, read_decoder_gguf
from inference.models.families.hub_config import Json, check_activation, read_decoder
from inference.models.families.hybrid import (
    gguf_fields,
    gguf_names,
    hybrid_fields,
    hybrid_tensors,
)

LEFT_OUT = {"model.visual.": "vision", "mtp.": "multi-token prediction"}
NESTED = "model.language_model."


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    text = text_config(config)
    check_activation(text, "silu")
    return read_decoder(text, generation, **hybrid_fields(text, DeltaNames()))


def text_config(config: Json) -> Json:
    """Of a checkpoint with or without a tower. What only the outer one says holds for the text."""
    nested = config.get("text_config")
    if nested is None:
        return config
    outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return outer | dict(nested) | {"model_type": config["model_type"]}


def hub_name(name: str) -> str:
    return f"model.{name.removeprefix(NESTED)}" if name.startswith(NESTED) else name


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_no_experts(keys)
    fields = gguf_fields(keys, DeltaNames(), are_value_heads_tiled=True)
    return read_decoder_gguf(keys, "qwen3_5", **fields)


QWEN3_5 = Family(
    name="qwen3_5",
    model_types=("qwen3_5", "qwen3_5_text"),
    gguf_architectures=("qwen35",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=hybrid_tensors,
    hub_name=hub_name,
    left_out=LEFT_OUT,
    gguf_names=gguf_names(MLP_NAMES),
    builder=DECODER,
)
