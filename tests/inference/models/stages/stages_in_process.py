"""Stages one after another in this process: families' stages are tested by it, and stages in
processes of their own compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import KVStorage, PlainBackend
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.stages.layer_range import LayerRange
from inference.models.stages.stage import AnyFirstStage, AnyStage, adapter_of_stage, step_of_stage
from inference.models.step_input import StepInput


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
        others: Sequence[AnyStage],
        ranges: Sequence[LayerRange],
    ) -> None:
        self.config = config
        self.first = first
        self.stages: tuple[AnyStage, ...] = (first, *others)
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
