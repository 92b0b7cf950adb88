"""Builds models by the builder that the family declares, on the fastest path that can run."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import torch

from inference.models.backend import AnyModel, Predictor
from inference.models.config import ATTENTION_KINDS, ModelConfig
from inference.models.cuda.setup import accelerate
from inference.models.decoder import DecoderModel
from inference.models.errors import UnregisteredArchitectureError
from inference.models.families.registry import MODELS_PAGE, family_of, find_family
from inference.models.kv_format import KVFormat
from inference.models.native.decoder import ACTIVATIONS
from inference.models.native.library import (
    NativeUnavailableError,
    load_library,
)
from inference.models.native.model import NativeModel, NativePredictor
from inference.models.native.packing import LANES
from inference.models.paged_kv import kv_format_on
from inference.models.predictor import TorchPredictor
from inference.models.transformers_backend.hub_module import ModuleBackend
from inference.models.weight_source import WeightSource

NATIVE_IN_WORDS = "native decoder, compiled on this machine"
Builder = Callable[[ModelConfig, WeightSource, int, KVFormat], AnyModel]


def build_model(
    config: ModelConfig,
    weights: WeightSource,
    context_tokens: int,
    kv_format: KVFormat | None = None,
) -> AnyModel:
    """On torch's operators. Raises ``UnregisteredArchitectureError`` and ``UnsupportedKVError``."""
    family = find_family(config.architecture)
    if family is None:
        raise UnregisteredArchitectureError(
            f"no family builds {config.architecture!r}; {MODELS_PAGE} lists those that do"
        )
    module, _, name = family.builder.partition(":")
    builder: Builder = getattr(import_module(module), name)
    given = weights.device, kv_format, weights.activation_dtype
    return builder(config, weights, context_tokens, kv_format_on(*given, is_native=False))


def build_fastest_model(
    config: ModelConfig,
    weights: WeightSource,
    context_tokens: int,
    native_cache_dir: Path,
    kv_format: KVFormat | None = None,
) -> tuple[AnyModel, str]:
    """The native decoder where it can run, else torch; and in words which, and why not the other.
    Raises ``UnregisteredArchitectureError`` and ``UnsupportedKVError``."""
    if config.module_config is not None:
        model = build_model(config, weights, context_tokens, kv_format)
        assert isinstance(model, ModuleBackend), "its family runs a module of transformers"
        return model, model.execution
    if weights.device.type != "cpu":
        model = build_model(config, weights, context_tokens, kv_format)
        return accelerate(model) if isinstance(model, DecoderModel) else (model, "torch operators")
    reason = native_problem(config, weights, native_cache_dir)
    if reason is not None or find_family(config.architecture) is None:
        model = build_model(config, weights, context_tokens, kv_format)
        return model, f"torch operators: {reason}"
    chosen = kv_format_on(weights.device, kv_format, weights.activation_dtype, is_native=True)
    native = NativeModel(load_library(native_cache_dir), config, weights, context_tokens, chosen)
    return native, NATIVE_IN_WORDS


def build_predictor(model: AnyModel, weights: WeightSource) -> Predictor:
    """Needs ``model.config.has_predictor``. Raises ``MissingTensorError``."""
    if isinstance(model, NativeModel):
        return NativePredictor(model, weights)
    return TorchPredictor(model, weights)


def native_problem(
    config: ModelConfig, weights: WeightSource, native_cache_dir: Path
) -> str | None:
    """``None``: the native decoder computes the model."""
    if weights.device.type != "cpu":
        return f"it is on {weights.device}"
    if weights.activation_dtype != torch.float32:
        return f"{weights.activation_dtype} was asked for".removeprefix("torch.")
    try:
        return unsupported_reason(config, load_library(native_cache_dir))
    except NativeUnavailableError as error:
        return str(error)


MOST_QUERY_GROUPS = 24
"""``kTileQueries`` of attention.h."""
STATE_LANES = 32
"""``kStateLanes`` of recurrent.h."""
MOST_CONV_ROWS = 4
"""``kMostConvRows`` of convolution.h."""


def unsupported_reason(config: ModelConfig, library: ctypes.CDLL) -> str | None:
    return next(_reasons(config, library), None)


def _reasons(config: ModelConfig, library: ctypes.CDLL) -> Iterator[str]:
    for words, is_declared in _unbuilt_variations(config).items():
        if is_declared:
            yield f"the native decoder has no {words}"
    if config.latent is not None:
        for name in ("kv_rank", "rotary_dim", "value_dim"):
            if (size := getattr(config.latent, name)) % LANES:
                yield f"latent attention's {name} {size} is not a multiple of {LANES}"
    elif config.head_dim % LANES or config.head_dim > library.helexa_max_head_dim():
        yield f"head_dim {config.head_dim} is not a multiple of {LANES} within the native limit"
    elif config.num_query_groups > MOST_QUERY_GROUPS:
        yield f"{config.num_query_groups} query heads per KV head are more than a native tile"
    for size in _intermediate_sizes(config):
        if size % LANES:
            yield f"intermediate_size {size} is not a multiple of {LANES}"
    yield from _state_reasons(config)


def _state_reasons(config: ModelConfig) -> Iterator[str]:
    delta, conv, mamba = config.delta, config.short_conv, config.mamba
    kernel = None
    if mamba is not None:
        kernel = mamba.conv_kernel
        if mamba.head_dim % STATE_LANES or mamba.state_size % LANES:
            dims = f"{mamba.head_dim} and {mamba.state_size}"
            yield f"Mamba-2 heads of {dims} are not multiples of {STATE_LANES} and {LANES}"
        if mamba.step_limit != (0.0, math.inf):
            yield "steps of Mamba-2 layers within limits are not built natively"
    elif conv is not None:
        kernel = conv.kernel
        if conv.channels % LANES:
            yield f"{conv.channels} channels of a convolution are not a multiple of {LANES}"
    elif delta is not None:
        kernel = delta.conv_kernel
        if delta.key_head_dim % LANES or delta.value_head_dim % STATE_LANES:
            dims = f"{delta.key_head_dim} and {delta.value_head_dim}"
            yield f"DeltaNet heads of {dims} are not multiples of {LANES} and {STATE_LANES}"
    if kernel is not None and not 2 <= kernel <= MOST_CONV_ROWS:
        yield f"a convolution over {kernel} rows is not built natively"


def _intermediate_sizes(config: ModelConfig) -> list[int]:
    sizes = [config.intermediate_size] if "dense" in config.mlp_kinds else []
    if config.experts is not None:
        sizes += [config.experts.intermediate_size, config.experts.shared_intermediate_size or 0]
    return sizes


def _has_other_mrope_layout(config: ModelConfig) -> bool:
    if config.vision is None or config.vision.mrope_section is None:
        return False
    kinds = set(config.mixer_kinds) & ATTENTION_KINDS
    is_deep = len(config.vision.deepstack_layers) >= config.num_layers
    return kinds != {"attention"} or config.is_rope_interleaved or is_deep


def _unbuilt_variations(config: ModelConfig) -> dict[str, object]:
    is_sparse = "sparse" in config.mlp_kinds
    return {
        "rotation by an image's rows and columns in this layout": _has_other_mrope_layout(config),
        "sinks of attention": config.has_sinks,
        "biased experts": config.experts is not None and config.experts.has_bias,
        f"{config.activation} MLPs": config.activation not in ACTIVATIONS,
        "experts beside a mixer": is_sparse and config.is_parallel,
        "experts of this activation": is_sparse and config.activation != "silu",
        "norms after experts": is_sparse and family_of(config).layer_names.mlp_added_norm,
    }
