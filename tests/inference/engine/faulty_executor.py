"""The tensor half of a step, breaking on purpose: a prompt's first token says what happens to the
steps that its sequence is part of. Torch's own exceptions are raised where they can be had.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Any, Literal

import torch

from inference.engine.engine import Sampled
from inference.engine.executor import TensorExecutor
from inference.engine.faults import StepFault
from inference.engine.scheduler import Schedule
from inference.engine.sequence import Sequence


class Kind(IntEnum):
    """First tokens."""

    NOT_A_NUMBER = 110
    TOO_LARGE = 111
    BAD_SHAPE = 112
    LOSES_THE_DEVICE = 113
    HANGS = 114
    LOSES_A_PEER = 115


class FaultyExecutor:
    def __init__(
        self,
        inner: TensorExecutor,
        *,
        stage: Literal["forward", "sampling"] = "forward",
        after: int = 0,
        room_tokens: int = 0,
    ) -> None:
        """``stage``: breaks when the keys and values are written, or when all is drawn that is
        drawn. ``after``: steps that go well first. ``room_tokens``: the longest chunk that fits of
        a prompt that is too large."""
        self._inner = inner
        self._stage = stage
        self._after = after
        self._room_tokens = room_tokens
        self._num_steps: dict[str, int] = {}
        self._schedule = Schedule()
        self._take_logprobs = inner._sampler._logprobs
        inner._sampler._logprobs = self._logprobs  # type: ignore[method-assign,assignment]
        self.attempted_tokens: list[int] = []
        """Prompt tokens of every attempt."""

    @torch.inference_mode()
    def execute(self, schedule: Schedule) -> Sampled:
        self._schedule = schedule
        self.attempted_tokens.append(schedule.num_prefill_tokens)
        logits = self._inner._runner.run(schedule)
        if self._stage == "forward":
            self._strike()
        for row, sequence in enumerate(schedule.sampled):
            if sequence.token_ids[0] == Kind.NOT_A_NUMBER and self._is_due(sequence):
                logits[row] = float("nan")
        sampled = self._inner._sampler.sample(schedule.sampled, logits)
        for sequence in schedule.sequences:
            self._num_steps[sequence.sequence_id] = self._steps_of(sequence) + 1
        return sampled

    @property
    def num_attempts(self) -> int:
        return len(self.attempted_tokens)

    def recover(self, error: Exception) -> StepFault:
        return self._inner.recover(error)

    def forget(self, sequence: Sequence) -> None:
        self._inner.forget(sequence)

    def _logprobs(self, *arguments: Any) -> Any:
        if self._stage == "sampling":
            self._strike()
        return self._take_logprobs(*arguments)

    def _steps_of(self, sequence: Sequence) -> int:
        return self._num_steps.get(sequence.sequence_id, 0)

    def _is_due(self, sequence: Sequence) -> bool:
        return self._steps_of(sequence) >= self._after

    def _strike(self) -> None:
        for sequence in self._schedule.sequences:
            if self._is_due(sequence):
                self._break(sequence.token_ids[0])

    def _break(self, kind: int) -> None:
        match kind:
            case Kind.TOO_LARGE if not self._fits():
                torch.empty(1 << 60, dtype=torch.uint8)
            case Kind.BAD_SHAPE:
                torch.ones(2, 3) @ torch.ones(2, 3)
            case Kind.LOSES_THE_DEVICE:
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
            case Kind.HANGS:
                time.sleep(3600)
            case Kind.LOSES_A_PEER:
                text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
                raise torch.distributed.DistBackendError(text)

    def _fits(self) -> bool:
        return not self._schedule.decodes and self._schedule.num_prefill_tokens <= self._room_tokens
