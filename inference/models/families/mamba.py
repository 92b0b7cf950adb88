"""Reads what families with Mamba-2 layers share in config.json and in GGUF's keys."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.hub_config import Json, positive_integer
from inference.models.layer_configs import NEGATIVE_RATE, MambaConfig

DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
MAMBA_LAYER = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt.bias": "mamba.dt_bias",
    "ssm_a": f"mamba.{NEGATIVE_RATE}",
    "ssm_d": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}


def read_mamba(config: Json) -> MambaConfig:
    """Reads the sizes of families that call them ``mamba_…``. Raises ``BadFileError``."""
    sizes = DEFAULTS | {key: config[key] for key in DEFAULTS if config.get(key) is not None}
    size_of = partial(positive_integer, sizes)
    num_heads, head_dim = size_of("mamba_n_heads"), config.get("mamba_d_head") or "auto"
    if head_dim == "auto":
        features = size_of("mamba_expand") * positive_integer(config, "hidden_size")
        head_dim = features // num_heads
    return MambaConfig(
        num_heads=num_heads,
        head_dim=positive_integer({"mamba_d_head": head_dim}, "mamba_d_head"),
        num_groups=size_of("mamba_n_groups"),
        state_size=size_of("mamba_d_state"),
        conv_kernel=size_of("mamba_d_conv"),
        has_conv_bias=bool(config.get("mamba_conv_bias", True)),
        has_bias=bool(config.get("mamba_proj_bias", False)),
        step_limit=step_limit(config.get("time_step_limit")),
    )


def step_limit(declared: Any) -> tuple[float, float]:
    """JSON has no infinity: files spell it in several ways."""
    if not declared:
        return 0.0, math.inf
    low, high = (end["__float__"] if isinstance(end, dict) else end for end in declared)
    return float(low), float(high)


def read_mamba_gguf(keys: GGUFKeys) -> MambaConfig:
    """llama.cpp's converter has put the negated rate of forgetting in place of its logarithm.
    Raises ``BadFileError``."""
    num_heads = keys.integer("ssm.time_step_rank")
    return MambaConfig(
        num_heads=num_heads,
        head_dim=keys.integer("ssm.inner_size") // num_heads,
        num_groups=keys.integer("ssm.group_count"),
        state_size=keys.integer("ssm.state_size"),
        conv_kernel=keys.integer("ssm.conv_kernel"),
        has_conv_bias=any(name.endswith(".ssm_conv1d.bias") for name in keys.shapes),
        has_bias=any(name.endswith(".ssm_in.bias") for name in keys.shapes),
        decay=NEGATIVE_RATE,
    )
