"""The tensor half of a step: the model runner, then the sampler."""

from __future__ import annotations

import torch

from inference.engine.engine import Sampled
from inference.engine.fault_classes import recover
from inference.engine.faults import StepFault
from inference.engine.model_runner import ModelRunner
from inference.engine.sampler import Sampler
from inference.engine.scheduler import Schedule
from inference.engine.sequence import Sequence


class TensorExecutor:
    def __init__(self, runner: ModelRunner, sampler: Sampler, device: torch.device) -> None:
        self._runner = runner
        self._sampler = sampler
        self._device = device

    def execute(self, schedule: Schedule) -> Sampled:
        logits = self._runner.run(schedule)
        return self._sampler.sample(schedule.sampled, logits)

    def recover(self, error: Exception) -> StepFault:
        return recover(error, self._device.type)

    def forget(self, sequence: Sequence) -> None:
        self._runner.forget(sequence)
        self._sampler.forget(sequence)
