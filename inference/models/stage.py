"""Builds one stage of a model: hidden rows in, hidden rows out. Copies nothing between devices."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from inference.models.adapter import AdapterWeights
from inference.models.config import ModelConfig
from inference.models.cuda.setup import install_kernels
from inference.models.decoder import DecoderLayers, DecoderModel
from inference.models.kv_format import KVFormat
from inference.models.native.library import load_library
from inference.models.native.model import NativeModel
from inference.models.paged_kv import kv_format_on
from inference.models.registry import NATIVE_IN_WORDS, native_problem
from inference.models.splits import LayerRange, stage_config
from inference.models.step_input import StepImages, StepInput
from inference.models.weight_source import (
    ForwardedWeights,
    WeightSource,
)

BuiltStage = DecoderLayers | NativeModel
"""``config`` and adapters' names count these layers from 0; ``dtype``: of hidden rows."""

AnyFirstStage = DecoderModel | NativeModel


def step_of_stage(step: StepInput, layers: LayerRange, index: int, *, is_last: bool) -> StepInput:
    """Stages before the last return all rows. A step's adapters are tuples, one entry a stage."""
    adapters = step.adapters
    if adapters is not None:
        adapters = tuple(None if each is None else each[index] for each in adapters)
        adapters = None if all(each is None for each in adapters) else adapters
    return replace(
        step,
        logit_rows=step.logit_rows if is_last else None,
        adapters=adapters,
        unread_ids=step.unread_ids if layers.is_first else None,
        images=None if step.images is None else _images_of(step.images, layers),
    )


def _images_of(images: StepImages, layers: LayerRange) -> StepImages:
    if images.rows is None or (layers.is_first and len(images.rows.deepstack) <= len(layers)):
        return images
    deepstack = images.rows.deepstack[layers.first : layers.last]
    return replace(images, rows=replace(images.rows, deepstack=deepstack))


def adapter_of_stage(weights: AdapterWeights, layers: LayerRange) -> AdapterWeights | None:
    """By the stage's names; ``None``: the adapter changes nothing here."""
    own = ((layers.own_name(name), module) for name, module in weights.modules.items())
    modules = {name: module for name, module in own if name is not None}
    return AdapterWeights(modules) if modules else None


def build_stage(
    config: ModelConfig,
    layers: LayerRange,
    weights: WeightSource,
    context_tokens: int,
    native_cache_dir: Path,
    kv_format: KVFormat | None = None,
) -> tuple[BuiltStage, str]:
    """``config`` and ``weights``: of the whole model, whose ``check_ranges`` has passed. The stage
    of layer 0 is an ``AnyFirstStage``. No steps are captured. Raises ``UnsupportedKVError``."""
    own, renamed = stage_config(config, layers), ForwardedWeights(weights, layers.whole_name)
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


def as_first_stage(stage: BuiltStage) -> AnyFirstStage:
    assert isinstance(stage, AnyFirstStage)
    return stage


def on_card(device: torch.device) -> AbstractContextManager[None]:
    """Triton launches on the current card, wherever its tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
