"""OLMo 2 and 3, and EXAONE 4: norms of what each part adds instead of what it reads. OLMo's other
norms are of all heads together, EXAONE's of each. In OLMo 3 most layers see a window, and their
positions are not scaled. Where EXAONE has a window, the layers that see beyond it have no rotary
embedding."""

from __future__ import annotations

from functools import partial
from typing import Any

from inference.models.config import MixerKind, ModelConfig
from inference.models.families.family import Family
from inference.models.families.gguf_keys import GGUFKeys, read_decoder_gguf, windowed_layers
from inference.models.families.hub_config import (
    Json,
    kinds_of_layers,
    positive_integer,
    read_llama,
    repeated,
    rope_by_kind,
    rope_parameters,
)
from inference.models.families.roles import LayerNames

NORMED_AFTER = LayerNames(
    input_norm=None,
    mixed_norm="post_attention_layernorm",
    mlp_norm=None,
    mlp_added_norm="post_feedforward_layernorm",
)
PERIOD = 4
"""The last of so many layers sees all, where the config does not list them."""
OLMO3_THETA = 500_000.0
DEFAULTS = {"rms_norm_eps": 1e-5}
read_config = partial(read_llama, defaults=DEFAULTS, qk_norm=True, is_qk_norm_wide=True)


def read_olmo3(config: Json, generation: Json) -> ModelConfig:
    config, local_theta = rope_by_kind({"rope_theta": OLMO3_THETA, **config})
    num_layers = positive_integer(config, "num_hidden_layers")
    theta = local_theta or rope_parameters(config)["rope_theta"] or OLMO3_THETA
    return read_config(
        config,
        generation,
        mixers=kinds_of_layers(config, repeated(num_layers, PERIOD)),
        sliding_window=config.get("sliding_window") or 4096,
        sliding_rope_theta=float(theta),
    )


def read_gguf(keys: GGUFKeys) -> ModelConfig:
    """llama.cpp calls both OLMo 2: the third has a window. Raises ``BadFileError``."""
    window = keys.find("attention.sliding_window")
    theta = keys.number("rope.freq_base", OLMO3_THETA)
    if window is None:
        return read_decoder_gguf(keys, "olmo2", is_qk_norm_wide=True)
    return read_decoder_gguf(
        keys,
        "olmo3",
        is_qk_norm_wide=True,
        mixers=windowed_layers(keys, PERIOD),
        sliding_window=window,
        sliding_rope_theta=keys.number("rope.freq_base_swa", theta),
    )


def read_exaone4(config: Json, generation: Json) -> ModelConfig:
    num_layers = positive_integer(config, "num_hidden_layers")
    period = config.get("sliding_window_pattern")
    default = repeated(num_layers, period if isinstance(period, int) and period else PERIOD)
    return read_llama(
        config,
        generation,
        defaults=DEFAULTS,
        qk_norm=True,
        **_exaone4_layers(config.get("sliding_window"), kinds_of_layers(config, default)),
    )


def read_exaone4_gguf(keys: GGUFKeys) -> ModelConfig:
    window, kinds = keys.find("attention.sliding_window"), windowed_layers(keys, PERIOD)
    return read_decoder_gguf(keys, "exaone4", **_exaone4_layers(window, kinds))


def _exaone4_layers(window: int | None, kinds: tuple[MixerKind, ...]) -> dict[str, Any]:
    if window is None:
        return {}
    mixers = tuple("sliding" if kind == "sliding" else "unrotated" for kind in kinds)
    return {"sliding_window": window, "mixers": mixers}


OLMO2 = Family(
    name="OLMo 2",
    model_types=("olmo2",),
    gguf_architectures=("olmo2",),
    read_config=read_config,
    read_gguf=read_gguf,
    layer_names=NORMED_AFTER,
)
OLMO3 = Family(
    name="OLMo 3",
    model_types=("olmo3",),
    gguf_shared=("olmo2",),
    read_config=read_olmo3,
    layer_names=NORMED_AFTER,
)
EXAONE4 = Family(
    name="EXAONE 4",
    model_types=("exaone4",),
    gguf_architectures=("exaone4",),
    read_config=read_exaone4,
    read_gguf=read_exaone4_gguf,
    layer_names=NORMED_AFTER,
)
FAMILIES = (OLMO2, OLMO3, EXAONE4)
