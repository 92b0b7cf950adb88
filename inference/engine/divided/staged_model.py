"""The ``Model`` of ``backend`` whose layers are divided over stages: the first is this process's,
the others have processes of their own.

    tokens ─▶ stage 1 ─ hidden rows ─▶ stage 2 ─ … ─▶ last stage
                 ▲                                        │
    logits ◀─ head (stage 1) ◀─ hidden rows of logit_rows ┘

Blocks and state slots have the same ids on all stages. Several steps may be under way; every stage
computes them in the order of ``begin``.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from inference.engine.divided.row_link import Arrival
from inference.engine.divided.stage_messages import RunStep, StageBuilt
from inference.engine.divided.stage_processes import StageProcesses
from inference.engine.divided.step_frames import NewKV, message_of
from inference.engine.errors import DeviceFault
from inference.engine.executor import TensorExecutor
from inference.engine.sequence import Sequence, SequenceState
from inference.engine.step import Sampled, Schedule
from inference.models.adapter import AdapterWeights
from inference.models.backend import AnyDevice, BackendSampler, KVStorage, PlainBackend
from inference.models.config import ModelConfig
from inference.models.kv_format import cache_bytes
from inference.models.splits import LayerRange, stage_config
from inference.models.stage import AnyFirstStage, adapter_of_stage, on_card, step_of_stage
from inference.models.step_input import StepInput, on_device
from inference.protocol.load import StageSpec


@dataclass(frozen=True, slots=True)
class StageFacts:
    spec: StageSpec
    layers: LayerRange
    device: AnyDevice
    weight_bytes: int
    built: StageBuilt


class StagedAdapter:
    """The first stage's own form of an adapter, then the others' numbers; ``None``: no change."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = tuple(parts)

    def __getitem__(self, index: int) -> Any:
        return self._parts[index]


class StagedModel(PlainBackend):
    def __init__(
        self,
        config: ModelConfig,
        first: AnyFirstStage,
        stages: list[StageFacts],
        processes: StageProcesses,
    ) -> None:
        assert len(stages) == 1 + len(processes)
        self.config = config
        self.first = first
        self.stages = tuple(stages)
        self.processes = processes
        self.tower, self.dtype, self.device = first.tower, first.dtype, first.device
        self.kv_format = first.kv_format
        """The first stage's: others may have their own."""
        self.has_own_threads = first.has_own_threads
        self._num_steps = 0
        self._num_rows: dict[int, int] = {}
        """Rows that the last stage is to send, by the number of each awaited step."""
        self._early: dict[int, Arrival] = {}

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def copies_context(self) -> bool:
        return any(one.built.copies_context for one in self.stages)

    @property
    def sampler(self) -> BackendSampler | None:
        return self.first.sampler

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> KVStorage:
        """Only the newest storage can be stepped: the other stages have freed theirs."""
        self._num_rows.clear()
        self._early.clear()
        self.processes.new_kv(
            NewKV(num_blocks=num_blocks, block_tokens=block_tokens, num_state_slots=num_state_slots)
        )
        kv: KVStorage = self.first.new_kv(num_blocks, block_tokens, num_state_slots)
        return kv

    def cache_bytes(
        self, num_blocks: int, block_tokens: int, num_state_slots: int = 0
    ) -> Mapping[AnyDevice, int]:
        sizes = num_blocks, block_tokens, num_state_slots
        found: Counter[AnyDevice] = Counter(self.first.cache_bytes(*sizes))
        for one in self.stages[1:]:
            config = stage_config(self.config, one.layers)
            found[one.device] += cache_bytes(config, one.built.kv_format, *sizes)
        return found

    def prepare_adapter(self, weights: AdapterWeights) -> StagedAdapter:
        own, *others = (adapter_of_stage(weights, one.layers) for one in self.stages)
        parts: list[Any] = [None if own is None else self.first.prepare_adapter(own)]
        for index, part in enumerate(others):
            parts.append(None if part is None else self.processes.add_adapter(index, part))
        adapter = StagedAdapter(parts)
        for number in filter(None, parts[1:]):
            weakref.finalize(adapter, self.processes.drop_adapter, number).atexit = False
        return adapter

    def forward(self, step: StepInput, kv: KVStorage) -> torch.Tensor:
        return self.finish(self.begin(step, kv))

    def begin(self, step: StepInput, kv: Any) -> int:
        """The first stage has computed it then. Raises its error: then nothing is under way."""
        last = len(self.stages) - 1
        steps = [
            step_of_stage(step, one.layers, index, is_last=index == last)
            for index, one in enumerate(self.stages)
        ]
        with on_card(self.device):
            hidden = self.first.forward_rows(steps[0], None, kv)
        self._num_steps += 1
        self._num_rows[self._num_steps] = steps[-1].num_logits
        messages = [
            RunStep(
                number=self._num_steps,
                step=message_of(own),
                adapters=None if own.adapters is None else list(own.adapters),
            )
            for own in steps[1:]
        ]
        self.processes.run(messages, hidden)
        return self._num_steps

    def finish(self, number: int) -> torch.Tensor:
        """Call it once for each step, in any order. Raises the fault of whichever stage had one."""
        arrival = self._wait(number)
        if arrival.fault is not None:
            raise arrival.fault
        assert arrival.rows is not None
        with on_card(self.device):
            return self.first.head_logits(arrival.rows.to(self.device, self.dtype))

    def give_up(self, number: int) -> None:
        """Replaces ``finish`` once its sequences have ended. The stages compute it all the same."""
        self._num_rows.pop(number, None)
        self._early.pop(number, None)

    def _wait(self, number: int) -> Arrival:
        """Drops rows of steps that nobody waits for: of ended sequences, or of an older storage."""
        while (found := self._early.pop(number, None)) is None:
            arrival = self.processes.next_arrival()
            num_rows = self._num_rows.pop(arrival.number, None)
            if num_rows is None:
                continue
            if arrival.rows is not None and len(arrival.rows) != num_rows:
                raise DeviceFault(
                    f"the last stage sent {len(arrival.rows)} rows of step {arrival.number}, "
                    f"which has {num_rows}"
                )
            self._early[arrival.number] = arrival
        return found


@dataclass(frozen=True, slots=True)
class BegunStep:
    number: int
    owners: list[Sequence]
    """The sequence of each row of the logits."""


class StagedExecutor:
    def __init__(self, executor: TensorExecutor, model: StagedModel) -> None:
        self._executor = executor
        self._model = model

    def execute(self, schedule: Schedule) -> Sampled:
        return self._executor.execute(schedule)

    @torch.inference_mode()
    def begin(self, schedule: Schedule) -> BegunStep:
        runner = self._executor.runner
        number = self._model.begin(runner.step_input(schedule), runner.kv)
        return BegunStep(number, _owners(schedule))

    @torch.inference_mode()
    def finish(self, step: BegunStep, live: Schedule) -> Sampled:
        """``live``: the schedule without ended sequences."""
        logits = self._model.finish(step.number)
        if any(owner.state is SequenceState.ENDED for owner in step.owners):
            rows = [r for r, s in enumerate(step.owners) if s.state is not SequenceState.ENDED]
            logits = logits.index_select(0, on_device(rows, torch.int64, logits.device))
        return self._executor.sample(live, logits)

    def give_up(self, step: BegunStep) -> None:
        self._model.give_up(step.number)


def _owners(schedule: Schedule) -> list[Sequence]:
    drafts, chunks = schedule.drafts, schedule.prefills
    owners = [s for s in schedule.decodes for _ in range(1 + len(drafts.get(s, ())))]
    owners += [chunk.sequence for chunk in chunks if chunk.is_last]
    return owners + [chunk.sequence for chunk in chunks for _ in chunk.scored]
