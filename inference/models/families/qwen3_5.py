"""Qwen3.5: hybrids of Gated DeltaNet and gated attention, with a dense MLP or a mixture of experts.

Checkpoints nest the text model beside a vision tower: config.json has it under
``text_config``, and its tensors are called ``model.language_model.*``. A text's three rotary
positions are all the same, so that interleaving them changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER, MLP_NAMES
from inference.models.families.family import Family, TensorRole
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.hub_config import Json, check_activation, read_decoder
from inference.models.families.hybrid import (
    gguf_fields,
    gguf_names,
    gguf_sparse_fields,
    hybrid_fields,
    hybrid_tensors,
    sparse_fields,
)
from inference.models.families.predictor import mtp_name
from inference.models.families.tower import TOWER, VISION, read_vision, tower_tensors
from inference.models.families.tower_gguf import QWEN3_PROJECTOR
from inference.models.layers.configs import DeltaNames

LEFT_OUT = {TOWER: VISION, "mtp.": "multi-token prediction"}
NESTED = "model.language_model."


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    text = text_config(config)
    check_activation(text, "silu")
    fields = hybrid_fields(text, DeltaNames())
    return read_decoder(text, generation, **fields, vision=read_vision(config, text))


def read_moe_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    text = text_config(config)
    check_activation(text, "silu")
    fields = hybrid_fields(text, DeltaNames()) | sparse_fields(text, normalizes=True)
    text["intermediate_size"] = fields["intermediate_size"]
    return read_decoder(text, generation, **fields, vision=read_vision(config, text))


def tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from hybrid_tensors(config)
    if config.vision is not None:
        yield from tower_tensors(config.vision)


def text_config(config: Json) -> dict[str, Any]:
    """Returns the text model's config, with or without a tower. Of the outer config,
    ``tie_word_embeddings`` holds for the text too."""
    nested = config.get("text_config")
    if nested is None:
        return dict(config)
    outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return outer | dict(nested) | {"model_type": config["model_type"]}


def hub_name(name: str) -> str:
    return f"model.{name.removeprefix(NESTED)}" if name.startswith(NESTED) else name


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    fields = gguf_fields(keys, DeltaNames(), are_value_heads_tiled=True)
    return read_decoder_gguf(keys, "qwen3_5", **fields)


def read_moe_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    fields = gguf_fields(keys, DeltaNames(), are_value_heads_tiled=True)
    sparse = gguf_sparse_fields(keys, fields["num_layers"])
    return read_decoder_gguf(keys, "qwen3_5_moe", **fields, **sparse)


QWEN3_5 = Family(
    name="qwen3_5",
    model_types=("qwen3_5", "qwen3_5_text"),
    gguf_architectures=("qwen35",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=tensors,
    hub_name=hub_name,
    left_out=LEFT_OUT,
    predictor_name=mtp_name,
    gguf_names=gguf_names(MLP_NAMES),
    gguf_projectors=(QWEN3_PROJECTOR,),
    features=frozenset({"prefix_reuse", "vision"}),
    builder=DECODER,
)
QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen3_5_moe",
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    gguf_architectures=("qwen35moe",),
    read_config=read_moe_config,
    read_gguf=read_moe_gguf,
)
