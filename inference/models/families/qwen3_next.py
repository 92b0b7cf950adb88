"""Qwen3-Next: a hybrid of Gated DeltaNet and gated attention, with a mixture of experts. Its
projections go from key head to key head."""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER, MLP_NAMES
from inference.models.families.family import Family
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
from inference.models.layers.configs import DeltaNames

GROUPED = DeltaNames(qkvz=("in_proj_qkvz",), ba=("in_proj_ba",))
PLAIN_QKVZ = DeltaNames(ba=("in_proj_ba",))
"""The names that llama.cpp's converter writes today: it takes the larger of the two apart."""


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu")
    fields = hybrid_fields(config, GROUPED) | sparse_fields(config, normalizes=True)
    return read_decoder(config, generation, **fields)


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    is_grouped = any(name.endswith(".ssm_in.weight") for name in keys.shapes)
    names = GROUPED if is_grouped else PLAIN_QKVZ
    fields = gguf_fields(keys, names, are_value_heads_tiled=False)
    sparse = gguf_sparse_fields(keys, fields["num_layers"])
    return read_decoder_gguf(keys, "qwen3_next", **fields, **sparse)


QWEN3_NEXT = Family(
    name="qwen3_next",
    model_types=("qwen3_next",),
    gguf_architectures=("qwen3next",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=hybrid_tensors,
    left_out={"mtp.": "multi-token prediction"},
    predictor_name=mtp_name,
    gguf_names=gguf_names(MLP_NAMES),
    builder=DECODER,
)
