"""The tensor half of a step in two halves: what the first stage computes, and what becomes of the
last one's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from inference.engine.emission import Sampled
from inference.engine.model_runner import TensorExecutor
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.sequence import Sequence, SequenceState
from inference.engine.stages.staged_model import StagedKV, StagedModel
from inference.models.to_device import on_device


@dataclass(frozen=True, slots=True)
class BegunStep:
    number: int
    owners: list[Sequence]
    """Whose each row of its logits is."""


class StagedExecutor:
    """``scheduling.step_groups.BeginningExecutor`` over an executor of a staged model."""

    def __init__(self, executor: TensorExecutor, model: StagedModel) -> None:
        self._executor = executor
        self._model = model

    def execute(self, schedule: Schedule) -> Sampled:
        return self._executor.execute(schedule)

    @torch.inference_mode()
    def begin(self, schedule: Schedule) -> BegunStep:
        runner = self._executor.runner
        # The model made it: ``build_engine`` gives the runner the KV cache of its model.
        kv = cast(StagedKV, runner.kv)
        number = self._model.begin(runner.step_input(schedule), kv)
        return BegunStep(number, _owners(schedule))

    @torch.inference_mode()
    def finish(self, step: BegunStep, live: Schedule) -> Sampled:
        logits = self._model.finish(step.number)
        if any(owner.state is SequenceState.ENDED for owner in step.owners):
            rows = [r for r, s in enumerate(step.owners) if s.state is not SequenceState.ENDED]
            logits = logits.index_select(0, on_device(rows, torch.int64, logits.device))
        return self._executor.sample(live, logits)

    def give_up(self, step: BegunStep) -> None:
        self._model.give_up(step.number)


def _owners(schedule: Schedule) -> list[Sequence]:
    """Returns the sequence of each row of the logits, in their order: see ``ModelRunner.run``."""
    drafts, chunks = schedule.drafts, schedule.prefills
    owners = [s for s in schedule.decodes for _ in range(1 + len(drafts.get(s, ())))]
    owners += [chunk.sequence for chunk in chunks if chunk.is_last]
    return owners + [chunk.sequence for chunk in chunks for _ in chunk.scored]
