"""What families with Mamba-2 layers share: their config keys and their tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from inference.models.config import ModelConfig
from inference.models.families.family import TensorRole
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.hub_config import Json, positive_integer
from inference.models.families.layer_names import LayerNames
from inference.models.families.mixture import mixture_tensors
from inference.models.layers.configs import NEGATIVE_RATE, MambaConfig

DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
GGUF_LAYER_NAMES = {
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


def mamba_hybrid_tensors(config: ModelConfig, names: LayerNames) -> Iterator[TensorRole]:
    """The tensors of a decoder whose layers are Mamba-2 or attention, and then an MLP or a
    mixture."""
    yield from mixture_tensors(config, names, mamba_tensors)


def mamba_tensors(config: ModelConfig) -> Iterator[TensorRole]:
    """Yields the tensors of a Mamba-2 layer. They are not divided among ranks: the norm is of many
    heads together."""
    mamba, hidden = config.mamba, config.hidden_size
    assert mamba is not None
    prefix, heads, channels = f"{mamba.prefix}.", (mamba.num_heads,), (mamba.conv_channels,)
    projected = mamba.projected_features
    yield TensorRole(f"{prefix}in_proj.weight", "column", (projected, hidden))
    yield TensorRole(f"{prefix}out_proj.weight", "row", (hidden, mamba.features))
    if mamba.has_bias:
        yield TensorRole(f"{prefix}in_proj.bias", "column", (projected,))
        yield TensorRole(f"{prefix}out_proj.bias", "row_bias", (hidden,))
    yield TensorRole(f"{prefix}conv1d.weight", "conv", (*channels, 1, mamba.conv_kernel))
    if mamba.has_conv_bias:
        yield TensorRole(f"{prefix}conv1d.bias", "conv", channels)
    # GGUF holds vectors of heads as columns, and the norm's numbers group by group.
    for name in (mamba.decay, "dt_bias", "D"):
        yield TensorRole(prefix + name, "state", heads, may_be_folded=True)
    yield TensorRole(f"{prefix}norm.weight", "norm", (mamba.features,), may_be_folded=True)
