"""ERNIE 4.5 with experts: chosen by a softmax over all and a bias that only chooses, beside one
that all rows go through; neighbours are rotated together."""

from __future__ import annotations

from inference.models.config import MlpKind, ModelConfig
from inference.models.families.decoder_tensors import DECODER
from inference.models.families.dots1 import NAMES
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.glm_moe import hub_name as glm_name
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    positive_integer,
    read_decoder,
)
from inference.models.families.mixture import experts_of, gguf_mixture, mixture_tensors
from inference.protocol.load_errors import BadFileError

STATICS = ("mlp.gate.moe_statics.", "mlp.moe_statics.")
"""What comes before the bias in files of transformers 5, and before it."""


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    if config.get("use_bias"):
        raise BadFileError("biases of every projection are not supported beside experts")
    inner = positive_integer(config, "moe_intermediate_size")
    num_shared = int(config.get("moe_num_shared_experts", 2) or 0)
    return read_decoder(
        {"rope_theta": 500_000.0, "rms_norm_eps": 1e-5, **config},
        generation,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        is_rope_interleaved=True,
        mlps=_mlps(config),
        experts=experts_of(
            {"num_experts_per_tok": config.get("moe_k"), **config},
            num_experts=positive_integer(config, "moe_num_experts"),
            intermediate_size=inner,
            normalizes=True,
            shared_intermediate_size=inner * num_shared or None,
            gates_shared=False,
            has_choice_bias=True,
        ),
    )


def _mlps(config: Json) -> tuple[MlpKind, ...]:
    num_layers = positive_integer(config, "num_hidden_layers")
    first, last = (int(config.get(f"moe_layer_{end}_index", -1)) for end in ("start", "end"))
    last = num_layers - 1 if last == -1 else last
    interval = int(config.get("moe_layer_interval") or 1)
    return tuple(
        "sparse" if (index + 1) % interval == 0 and first <= index <= last else "dense"
        for index in range(num_layers)
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    mixture = gguf_mixture(keys, normalizes=True)
    return read_decoder_gguf(keys, "ernie4_5_moe", is_rope_interleaved=True, **mixture)


def hub_name(name: str) -> str:
    for start in STATICS:
        name = name.replace(start, "mlp.gate.")
    return glm_name(name)


ERNIE4_5_MOE = Family(
    name="ERNIE 4.5 (experts)",
    model_types=("ernie4_5_moe",),
    gguf_architectures=("ernie4_5-moe",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=mixture_tensors,
    hub_name=hub_name,
    left_out={"model.mtp_": "multi-token prediction"},
    gguf_names=NAMES,
    builder=DECODER,
)
