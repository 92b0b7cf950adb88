"""The tensor half of a step: the model runner, then the sampler."""

from __future__ import annotations

from dataclasses import replace

import torch

from inference.engine.engine import Sampled
from inference.engine.fault_classes import recover
from inference.engine.faults import StepFault
from inference.engine.logprobs import prompt_logprobs
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
        num_sampled = len(schedule.sampled)
        scored = prompt_logprobs(schedule.prefills, logits[num_sampled:])
        sampled = self._sampler.sample(schedule.sampled, logits[:num_sampled])
        return replace(sampled, prompt_logprobs=scored) if scored else sampled

    def recover(self, error: Exception) -> StepFault:
        return recover(error, self._device.type)

    def forget(self, sequence: Sequence) -> None:
        self._runner.forget(sequence)
        self._sampler.forget(sequence)
