"""Builds models by the builder that the family declares, on the fastest path that can run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from inference.models.backend import AnyModel, AnyPredictor
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import kv_format_on
from inference.models.config import ModelConfig
from inference.models.cuda.setup import accelerate
from inference.models.decoder import DecoderModel
from inference.models.errors import UnregisteredArchitectureError
from inference.models.families.registry import MODELS_PAGE, find_family
from inference.models.native.build import (
    NativeUnavailableError,
    load_library,
)
from inference.models.native.model import NativeModel, NativePredictor
from inference.models.native.support import unsupported_reason
from inference.models.predictor import TorchPredictor
from inference.models.weights.weight_source import WeightSource


@runtime_checkable
class ModuleModel(Protocol):
    """A module of the transformers backend."""

    @property
    def execution(self) -> str:
        """Describes how it runs, and that it is slower."""
        ...


NATIVE_IN_WORDS = "native decoder, compiled on this machine"
Builder = Callable[[ModelConfig, WeightSource, int, KVFormat], AnyModel]


def build_model(
    config: ModelConfig,
    weights: WeightSource,
    context_tokens: int,
    kv_format: KVFormat | None = None,
) -> AnyModel:
    """Builds the model on torch operators. ``kv_format`` ``None``: the activations' dtype. Raises
    ``UnregisteredArchitectureError`` and ``UnsupportedKVError``."""
    family = find_family(config.architecture)
    if family is None:
        raise UnregisteredArchitectureError(
            f"no family builds {config.architecture!r}; {MODELS_PAGE} lists those that do"
        )
    module, _, name = family.builder.partition(":")
    builder: Builder = getattr(import_module(module), name)
    return builder(config, weights, context_tokens, _kv_format(kv_format, weights, False))


def build_fastest_model(
    config: ModelConfig,
    weights: WeightSource,
    context_tokens: int,
    native_cache_dir: Path,
    kv_format: KVFormat | None = None,
) -> tuple[AnyModel, str]:
    """The native decoder where it can run, else torch, with Triton's attention on a card that runs
    it; and in words which, and why not the other.
    ``kv_format`` ``None``: the path's own. Raises ``UnregisteredArchitectureError`` and
    ``UnsupportedKVError``."""
    if config.module_config is not None:
        model = build_model(config, weights, context_tokens, kv_format)
        assert isinstance(model, ModuleModel), "its family runs a module of transformers"
        return model, model.execution
    if weights.device.type != "cpu":
        model = build_model(config, weights, context_tokens, kv_format)
        return accelerate(model) if isinstance(model, DecoderModel) else (model, "torch operators")
    reason = native_problem(config, weights, native_cache_dir)
    if reason is not None or find_family(config.architecture) is None:
        model = build_model(config, weights, context_tokens, kv_format)
        return model, f"torch operators: {reason}"
    chosen = _kv_format(kv_format, weights, True)
    native = NativeModel(load_library(native_cache_dir), config, weights, context_tokens, chosen)
    return native, NATIVE_IN_WORDS


def build_predictor(model: AnyModel, weights: WeightSource) -> AnyPredictor:
    """The model's own layer of multi-token prediction, on the model's backend.
    ``model.config.has_predictor``. Raises ``MissingTensorError``."""
    if isinstance(model, NativeModel):
        return NativePredictor(model, weights)
    return TorchPredictor(model, weights)


def native_problem(
    config: ModelConfig, weights: WeightSource, native_cache_dir: Path
) -> str | None:
    """Why the native decoder does not compute the model, in words; ``None``: it does."""
    if weights.device.type != "cpu":
        return f"it is on {weights.device}"
    if weights.activation_dtype != torch.float32:
        return f"{weights.activation_dtype} was asked for".removeprefix("torch.")
    try:
        return unsupported_reason(config, load_library(native_cache_dir))
    except NativeUnavailableError as error:
        return str(error)


def _kv_format(wanted: KVFormat | None, weights: WeightSource, is_native: bool) -> KVFormat:
    return kv_format_on(weights.device, wanted, weights.activation_dtype, is_native=is_native)
