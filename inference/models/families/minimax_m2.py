"""MiniMax-M2: experts in every layer, chosen by their sigmoids and a bias that only chooses, behind
attention with a norm of all heads of queries together, and of keys; a part of each head is rotated.
"""

from __future__ import annotations

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import DECODER
from inference.models.families.dots1 import NAMES
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf
from inference.models.families.gguf_keys import rotary_dim as rotary_dim_gguf
from inference.models.families.hub_config import (
    Json,
    check_activation,
    positive_integer,
    read_decoder,
    rotary_dim,
)
from inference.models.families.mixture import experts_of, gguf_mixture, mixture_tensors
from inference.protocol.load_errors import BadFileError

BLOCK, MLP = ".block_sparse_moe.", ".mlp."
BIAS = "e_score_correction_bias"


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    if (
        not config.get("use_qk_norm", True)
        or config.get("qk_norm_type", "per_layer") != "per_layer"
    ):
        raise BadFileError("queries and keys without a norm of all heads are not supported")
    if config.get("shared_intermediate_size"):
        raise BadFileError("a shared expert is not supported in this architecture")
    return read_decoder(
        config,
        generation,
        qk_norm=True,
        is_qk_norm_wide=True,
        rotary_dim=int(config.get("rotary_dim") or rotary_dim(config)),
        experts=experts_of(
            config,
            intermediate_size=positive_integer(config, "intermediate_size"),
            scoring="sigmoid",
            normalizes=True,
            has_choice_bias=True,
        ),
        mlps=("sparse",) * positive_integer(config, "num_hidden_layers"),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    return read_decoder_gguf(
        keys,
        "minimax_m2",
        is_qk_norm_wide=True,
        rotary_dim=rotary_dim_gguf(keys),
        **gguf_mixture(keys, normalizes=True),
    )


def hub_name(name: str) -> str:
    """Published files have the bias beside the router, whose own it is here."""
    for before in (BLOCK, MLP):
        name = name.replace(f"{before}{BIAS}", f"{MLP}gate.{BIAS}")
    return name


MINIMAX_M2 = Family(
    name="MiniMax-M2",
    model_types=("minimax_m2",),
    gguf_architectures=("minimax-m2",),
    read_config=read_config,
    read_gguf=read_gguf,
    tensors=mixture_tensors,
    hub_name=hub_name,
    gguf_names=NAMES,
    builder=DECODER,
)
