"""Builds one stage of a model, with the fastest code that its device runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import kv_format_on
from inference.models.config import ModelConfig
from inference.models.cuda.setup import install_kernels
from inference.models.decoder import DecoderLayers, DecoderModel
from inference.models.native.build import load_library
from inference.models.native.model import NativeModel
from inference.models.registry import NATIVE_IN_WORDS, native_problem
from inference.models.stages.layer_range import LayerRange, stage_config
from inference.models.weights.grouped_product import GroupedProduct
from inference.models.weights.lazy import LazyWeight
from inference.models.weights.stored import StoredWeight
from inference.models.weights.weight_source import Embedding, ForwardedWeights, Linear, WeightSource


class StageWeights(ForwardedWeights):
    """Weights of one stage, whose layers are counted from its first."""

    def __init__(self, weights: WeightSource, layers: LayerRange) -> None:
        """``weights``: of the whole model, or at least of the stage."""
        super().__init__(weights)
        self._layers = layers

    def tensor(self, name: str) -> torch.Tensor:
        return super().tensor(self._layers.whole_name(name))

    def has(self, name: str) -> bool:
        return super().has(self._layers.whole_name(name))

    def linear(self, *names: str) -> Linear:
        return super().linear(*map(self._layers.whole_name, names))

    def embedding(self, name: str) -> Embedding:
        return super().embedding(self._layers.whole_name(name))

    def grouped(self, experts: Sequence[Sequence[str]]) -> GroupedProduct:
        whole_name = self._layers.whole_name
        return super().grouped([[whole_name(name) for name in names] for names in experts])

    def stored(self, name: str) -> StoredWeight:
        return super().stored(self._layers.whole_name(name))

    def stored_parts(self, *names: str) -> Sequence[LazyWeight]:
        return super().stored_parts(*map(self._layers.whole_name, names))


BuiltStage = DecoderLayers | NativeModel


def build_stage(
    config: ModelConfig,
    layers: LayerRange,
    weights: WeightSource,
    context_tokens: int,
    native_cache_dir: Path,
    kv_format: KVFormat | None = None,
) -> tuple[BuiltStage, str]:
    """Returns the stage, and a sentence about its backend. ``config``: of the whole model,
    whose ``check_ranges`` has passed; ``weights`` by the whole model's names. The stage of layer 0
    is a ``FirstStage``. No steps are captured. Raises ``UnsupportedKVError``."""
    own, renamed = stage_config(config, layers), StageWeights(weights, layers)
    problem = native_problem(config, weights, native_cache_dir)
    device, dtype = weights.device, weights.activation_dtype
    chosen = kv_format_on(device, kv_format, dtype, is_native=problem is None)
    if problem is None:
        library, has_outer = load_library(native_cache_dir), layers.is_first
        return (
            NativeModel(library, own, renamed, context_tokens, chosen, has_outer=has_outer),
            NATIVE_IN_WORDS,
        )
    kind = DecoderModel if layers.is_first else DecoderLayers
    model = kind(own, renamed, context_tokens, chosen)
    if device.type != "cuda":
        return model, f"torch operators: {problem}"
    with on_card(device):
        _, words = install_kernels(model)
    return model, f"{words}; steps of stages are not captured"


def as_first_stage(stage: BuiltStage) -> DecoderModel | NativeModel:
    """``stage``, which was built of layer 0 on."""
    assert isinstance(stage, DecoderModel | NativeModel)
    return stage


def on_card(device: torch.device) -> AbstractContextManager[None]:
    """Triton launches on the current card, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
