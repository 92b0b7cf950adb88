"""The tensor half of a step: the model runner, then the sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from inference.engine.faults.fault_classes import recover
from inference.engine.faults.kinds import StepFault
from inference.engine.model_runner import ModelRunner
from inference.engine.sampling.logprobs import prompt_logprobs
from inference.engine.sampling.sampled import Sampled
from inference.engine.sampling.sampler import Sampler, UnreadTokens
from inference.engine.sampling.verifying import UnreadDrafts, choose_drafted, read_drafted
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.sequence import Sequence
from inference.models.to_device import on_device


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    schedule: Schedule
    logits: torch.Tensor
    """Rows of the sampled sequences, then of the scored tokens: see ``ModelRunner.run``."""
    unread: UnreadTokens | UnreadDrafts

    def token_ids_of(self, sequences: list[Sequence]) -> torch.Tensor:
        """What it sampled for each of them: (num_sequences,) int64, on the device."""
        assert isinstance(self.unread, UnreadTokens), "nothing starts from unread drafts"
        token_ids, sampled = self.unread.token_ids(), self.unread.sequences
        if sequences == sampled:
            return token_ids
        row_of = {sequence.sequence_id: row for row, sequence in enumerate(sampled)}
        rows = [row_of[sequence.sequence_id] for sequence in sequences]
        return token_ids.index_select(0, on_device(rows, torch.int64, token_ids.device))


class TensorExecutor:
    def __init__(self, runner: ModelRunner, sampler: Sampler, device: torch.device) -> None:
        self._runner = runner
        self._sampler = sampler
        self._device = device

    def execute(self, schedule: Schedule) -> Sampled:
        return self.read(self.launch(schedule))

    def launch(self, schedule: Schedule, after: LaunchedStep | None = None) -> LaunchedStep:
        """Waits for nothing on the device. ``after``: see ``run_ahead.LaunchingExecutor``."""
        unread_ids = None if after is None else after.token_ids_of(schedule.decodes)
        logits = self._runner.run(schedule, unread_ids)
        if schedule.drafts:
            return LaunchedStep(schedule, logits, choose_drafted(self._sampler, schedule, logits))
        num_ahead = 0 if after is None else 1
        sampled = schedule.sampled
        unread = self._sampler.choose(sampled, logits[: len(sampled)], num_ahead=num_ahead)
        return LaunchedStep(schedule, logits, unread)

    def read(self, step: LaunchedStep) -> Sampled:
        if isinstance(step.unread, UnreadDrafts):
            return read_drafted(self._sampler, step.unread)
        chunks = step.schedule.prefills
        scored = prompt_logprobs(chunks, step.logits[len(step.unread.sequences) :])
        sampled = self._sampler.read(step.unread)
        return replace(sampled, prompt_logprobs=scored) if scored else sampled

    def is_settled(self, sequence: Sequence) -> bool:
        return self._sampler.is_settled(sequence)

    def recover(self, error: Exception) -> StepFault:
        return recover(error, self._device.type)

    def forget(self, sequence: Sequence) -> None:
        self._runner.forget(sequence)
        self._sampler.forget(sequence)
