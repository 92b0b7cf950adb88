"""Which models the native decoder can run."""

from __future__ import annotations

import ctypes
import math

from inference.models.config import ATTENTION_KINDS, ModelConfig
from inference.models.families.registry import family_of
from inference.models.layers.configs import DeltaConfig, LatentConfig, MambaConfig, ShortConvConfig
from inference.models.native.decoder import ACTIVATIONS
from inference.models.native.packing import LANES

MOST_QUERY_GROUPS = 24
"""``kTileQueries`` of attention.h."""
STATE_LANES = 32
"""``kStateLanes`` of delta_net.h."""
MOST_CONV_ROWS = 4
"""``kMostConvRows`` of convolution.h."""


def unsupported_reason(config: ModelConfig, library: ctypes.CDLL) -> str | None:
    """Why this model cannot run natively, or ``None``."""
    if reason := _unbuilt_variation(config):
        return f"the native decoder has no {reason}"
    if reason := _unsupported_heads(config, library):
        return reason
    for size in _intermediate_sizes(config):
        if size % LANES:
            return f"intermediate_size {size} is not a multiple of {LANES}"
    if config.mamba is not None:
        return _unsupported_mamba(config.mamba)
    if config.short_conv is not None:
        return _unsupported_conv(config.short_conv)
    return None if config.delta is None else _unsupported_delta(config.delta)


def _unsupported_heads(config: ModelConfig, library: ctypes.CDLL) -> str | None:
    if config.latent is not None:
        return _unsupported_latent(config.latent)
    if config.head_dim % LANES or config.head_dim > library.helexa_max_head_dim():
        return f"head_dim {config.head_dim} is not a multiple of {LANES} within the native limit"
    if config.num_query_groups > MOST_QUERY_GROUPS:
        return f"{config.num_query_groups} query heads per KV head are more than a native tile"
    return None


def _unsupported_latent(shape: LatentConfig) -> str | None:
    for name in ("kv_rank", "rotary_dim", "value_dim"):
        if (size := getattr(shape, name)) % LANES:
            return f"latent attention's {name} {size} is not a multiple of {LANES}"
    return None


def _unsupported_conv(shape: ShortConvConfig) -> str | None:
    if shape.channels % LANES:
        return f"{shape.channels} channels of a convolution are not a multiple of {LANES}"
    return _unsupported_kernel(shape.kernel)


def _unsupported_mamba(shape: MambaConfig) -> str | None:
    if shape.head_dim % STATE_LANES or shape.state_size % LANES:
        dims = f"{shape.head_dim} and {shape.state_size}"
        return f"Mamba-2 heads of {dims} are not multiples of {STATE_LANES} and {LANES}"
    if shape.step_limit != (0.0, math.inf):
        return "steps of Mamba-2 layers within limits are not built natively"
    return _unsupported_kernel(shape.conv_kernel)


def _unsupported_kernel(rows: int) -> str | None:
    if not 2 <= rows <= MOST_CONV_ROWS:
        return f"a convolution over {rows} rows is not built natively"
    return None


def _unsupported_delta(shape: DeltaConfig) -> str | None:
    if shape.key_head_dim % LANES or shape.value_head_dim % STATE_LANES:
        dims = f"{shape.key_head_dim} and {shape.value_head_dim}"
        return f"DeltaNet heads of {dims} are not multiples of {LANES} and {STATE_LANES}"
    return _unsupported_kernel(shape.conv_kernel)


def _intermediate_sizes(config: ModelConfig) -> list[int]:
    sizes = [config.intermediate_size] if "dense" in config.mlp_kinds else []
    if config.experts is not None:
        sizes += [config.experts.intermediate_size, config.experts.shared_intermediate_size or 0]
    return sizes


def _has_other_mrope_layout(config: ModelConfig) -> bool:
    """Whether the model's images need a layout that no family has: several kinds of attention,
    interleaved heads, or deepstack rows behind the last layer."""
    if config.vision is None or config.vision.mrope_section is None:
        return False
    kinds = set(config.mixer_kinds) & ATTENTION_KINDS
    is_deep = len(config.vision.deepstack_layers) >= config.num_layers
    return kinds != {"attention"} or config.is_rope_interleaved or is_deep


def _unbuilt_variation(config: ModelConfig) -> str | None:
    """The first thing declared that the native layers do not compute."""
    is_sparse = "sparse" in config.mlp_kinds
    variations = {
        "rotation by an image's rows and columns in this layout": _has_other_mrope_layout(config),
        "sinks of attention": config.has_sinks,
        "biased experts": config.experts is not None and config.experts.has_bias,
        f"{config.activation} MLPs": config.activation not in ACTIVATIONS,
        "experts beside a mixer": is_sparse and config.is_parallel,
        "experts of this activation": is_sparse and config.activation != "silu",
        "norms after experts": is_sparse and family_of(config).layer_names.mlp_added_norm,
    }
    return next((words for words, is_declared in variations.items() if is_declared), None)
