"""EXAONE 4: norms of what each part adds, and of each head. Where there is a window, the layers
that see beyond it have no rotary embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf, windowed_layers
from inference.models.families.hub_config import (
    Json,
    check_activation,
    check_whole_rotary,
    kinds_of_layers,
    positive_integer,
    read_decoder,
    repeated,
)
from inference.models.families.olmo2 import OLMO2

PERIOD = 4
"""The last of so many layers sees all, where the config does not list them."""


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu", "swish")
    check_whole_rotary(config)
    num_layers = positive_integer(config, "num_hidden_layers")
    period = config.get("sliding_window_pattern")
    default = repeated(num_layers, period if isinstance(period, int) and period else PERIOD)
    return read_decoder(
        {"rms_norm_eps": 1e-5, **config},
        generation,
        qk_norm=True,
        **_layers(config.get("sliding_window"), kinds_of_layers(config, default)),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """Raises ``BadFileError``."""
    layers = _layers(keys.find("attention.sliding_window"), windowed_layers(keys, PERIOD))
    return read_decoder_gguf(keys, "exaone4", **layers)


def _layers(window: int | None, kinds: tuple[MixerKind, ...]) -> dict[str, Any]:
    if window is None:
        return {}
    mixers = tuple("sliding" if kind == "sliding" else "unrotated" for kind in kinds)
    return {"sliding_window": window, "mixers": mixers}


EXAONE4: Family = replace(
    OLMO2,
    name="EXAONE 4",
    model_types=("exaone4",),
    gguf_architectures=("exaone4",),
    read_config=read_config,
    read_gguf=read_gguf,
)
