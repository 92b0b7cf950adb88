"""Models as stages beside the same models whole, and steps for both."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inference.loading.weights.tensor_files import TensorFiles
from inference.models.adapter import AdapterWeights
from inference.models.backend import AnyModel, KVStorage, PlainBackend
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.decoder import DecoderLayers, DecoderModel
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from inference.models.stages.build import (
    AnyFirstStage,
    BuiltStage,
    Stage,
    adapter_of_stage,
    as_first_stage,
    step_of_stage,
)
from inference.models.stages.layer_range import LayerRange, check_ranges, stage_config
from inference.models.step_input import StepImages, StepInput
from inference.models.weights.weight_source import ForwardedWeights
from tests.inference.models.parallel.ranks import weights_of
from tests.inference.models.steps import step_of

CONTEXT_TOKENS, BLOCK_TOKENS = 96, 32


def ranges_of(*ends: int) -> list[LayerRange]:
    return [LayerRange(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def even_ranges(config: ModelConfig, num_stages: int) -> list[LayerRange]:
    return ranges_of(*(config.num_layers * (i + 1) // num_stages for i in range(num_stages)))


def whole(
    config: ModelConfig,
    files: TensorFiles,
    library: ctypes.CDLL | None = None,
    kv_format: KVFormat = "fp32",
) -> AnyModel:
    """``library``: of the native decoder; ``None``: on torch's operators."""
    weights = weights_of(files)
    if library is None:
        return build_model(config, weights, CONTEXT_TOKENS, kv_format)
    return NativeModel(library, config, weights, CONTEXT_TOKENS, kv_format)


def staged(
    config: ModelConfig,
    files: TensorFiles,
    ranges: Sequence[LayerRange],
    libraries: Sequence[ctypes.CDLL | None],
    kv_format: KVFormat = "fp32",
) -> StagesInProcess:
    """``libraries``: of each stage, as of ``whole``."""
    check_ranges(config, ranges)
    stages = [
        _stage(config, files, layers, library, kv_format)
        for layers, library in zip(ranges, libraries, strict=True)
    ]
    return StagesInProcess(config, as_first_stage(stages[0]), stages[1:], ranges)


def _stage(
    config: ModelConfig,
    files: TensorFiles,
    layers: LayerRange,
    library: ctypes.CDLL | None,
    kv_format: KVFormat,
) -> BuiltStage:
    own, weights = (
        stage_config(config, layers),
        ForwardedWeights(weights_of(files), layers.whole_name),
    )
    if library is not None:
        outer = layers.is_first
        return NativeModel(library, own, weights, CONTEXT_TOKENS, kv_format, has_outer=outer)
    kind = DecoderModel if layers.is_first else DecoderLayers
    return kind(own, weights, CONTEXT_TOKENS, kv_format)


@torch.inference_mode()
def logits_of(model: AnyModel, images: StepImages | None = None) -> list[torch.Tensor]:
    """A prompt in two chunks over a block's end, the second beside another sequence that decodes;
    a third one starts from the first one's block; then two decode, one of them with a draft."""
    kv = model.new_kv(8, BLOCK_TOKENS, 8)
    tokens = [token * 7 % model.config.vocab_size for token in range(3, 3 + 60)]

    def forward(step_images: StepImages | None = None, **given: object) -> torch.Tensor:
        step = step_of(*queries, block_tokens=BLOCK_TOKENS, **given)
        return model.forward(replace(step, images=step_images), kv)

    found = []
    queries = [(tokens[:32], 0, [0])]
    found.append(forward(images, logit_rows=[31], state_slots=([0], [1])))
    queries = [(tokens[40:45], 0, [4, 5])]
    found.append(forward(logit_rows=[], state_slots=([0], [2])))
    queries = [(tokens[45:46], 5, [4, 5]), (tokens[32:38], 32, [0, 1])]
    found.append(forward(num_decodes=1, logit_rows=[0, 6], state_slots=([2, 1], [4, 3])))
    queries = [(tokens[50:53], 32, [0, 6])]
    found.append(forward(state_slots=([1], [6])))
    queries = [(tokens[46:47], 6, [4, 5]), (tokens[38:40], 38, [0, 1])]
    found.append(forward(num_decodes=2, state_slots=([4, 3], [2, 5])))
    return found


@dataclass(frozen=True, slots=True)
class StoragesInProcess:
    stages: tuple[KVStorage, ...]

    @property
    def block_tokens(self) -> int:
        return self.stages[0].block_tokens

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        raise NotImplementedError


class StagesInProcess(PlainBackend):
    def __init__(
        self,
        config: ModelConfig,
        first: AnyFirstStage,
        others: Sequence[Stage[Any]],
        ranges: Sequence[LayerRange],
    ) -> None:
        self.config = config
        self.first = first
        self.stages: tuple[Stage[Any], ...] = (first, *others)
        self.ranges = tuple(ranges)
        self.dtype, self.device = first.dtype, first.device
        self.kv_format: KVFormat = first.kv_format
        self.copies_context = any(stage.copies_context for stage in self.stages)

    def new_kv(
        self, num_blocks: int, block_tokens: int, num_state_slots: int = 0
    ) -> StoragesInProcess:
        sizes = num_blocks, block_tokens, num_state_slots
        return StoragesInProcess(tuple(stage.new_kv(*sizes) for stage in self.stages))

    def prepare_adapter(self, weights: AdapterWeights) -> tuple[Any, ...]:
        parts = (adapter_of_stage(weights, layers) for layers in self.ranges)
        return tuple(
            None if part is None else stage.prepare_adapter(part)
            for stage, part in zip(self.stages, parts, strict=True)
        )

    def forward(self, step: StepInput, kv: StoragesInProcess) -> torch.Tensor:
        last, hidden = len(self.stages) - 1, None
        for index, stage in enumerate(self.stages):
            own = step_of_stage(step, self.ranges[index], index, is_last=index == last)
            if hidden is not None:
                hidden = hidden.to(stage.device, stage.dtype)
            hidden = stage.forward_rows(own, hidden, kv.stages[index])
        assert hidden is not None, "there are stages"
        return self.first.head_logits(hidden)
