"""The tensor half of a step, breaking on purpose: a prompt's first token selects the fault of the
steps that its sequence is part of. Raises torch's own exceptions where they can be provoked."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any, Literal

import torch

from inference.engine.executor import LaunchedStep, TensorExecutor
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled, Schedule


class Kind(IntEnum):
    """First tokens."""

    NOT_A_NUMBER = 110
    TOO_LARGE = 111
    BAD_SHAPE = 112
    LOSES_THE_DEVICE = 113
    LOSES_A_PEER = 115
    PANICS = 116
    """The fault of code in Rust, whose panics are no ``Exception``."""


class PanicError(BaseException):
    """Stands for PyO3's ``PanicException``."""


class FaultyExecutor(TensorExecutor):
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
        super().__init__(inner.runner, inner.sampler, inner._device)
        self._stage, self._after, self._room_tokens = stage, after, room_tokens
        self._num_steps: Counter[str] = Counter()
        self.schedule, self._num_unread = Schedule(), 0
        self._forward, self._take_logprobs = inner.runner.run, inner.sampler.logprobs
        inner.runner.run = self._run  # type: ignore[method-assign,assignment]
        inner.sampler.logprobs = self._logprobs  # type: ignore[method-assign,assignment]
        self.attempted_tokens: list[int] = []
        """Prompt tokens of every attempt."""

    def launch(self, schedule: Schedule, after: LaunchedStep | None = None) -> LaunchedStep:
        self.schedule, self._num_unread = schedule, int(after is not None)
        self.attempted_tokens.append(schedule.num_prefill_tokens)
        return super().launch(schedule, after)

    def read(self, step: LaunchedStep) -> Sampled:
        self.schedule, self._num_unread = step.schedule, 0
        sampled = super().read(step)
        self._num_steps.update(sequence.sequence_id for sequence in step.schedule.sequences)
        return sampled

    def _run(self, schedule: Schedule, unread_ids: torch.Tensor | None = None) -> torch.Tensor:
        logits = self._forward(schedule, unread_ids)
        if self._stage == "forward":
            self._strike()
        for row, sequence in enumerate(schedule.sampled):
            if sequence.token_ids[0] == Kind.NOT_A_NUMBER and self._is_due(sequence):
                with torch.inference_mode():
                    logits[row] = float("nan")
        return logits

    def _logprobs(self, *arguments: Any) -> Any:
        if self._stage == "sampling":
            self._strike()
        return self._take_logprobs(*arguments)

    def _is_due(self, sequence: Sequence) -> bool:
        return self._num_steps[sequence.sequence_id] + self._num_unread >= self._after

    def _strike(self) -> None:
        for kind in [s.token_ids[0] for s in self.schedule.sequences if self._is_due(s)]:
            match kind:
                case Kind.TOO_LARGE if not self._fits():
                    torch.empty(1 << 60, dtype=torch.uint8)
                case Kind.PANICS:
                    raise PanicError("end byte index 100 is not a char boundary")
                case Kind.BAD_SHAPE:
                    torch.ones(2, 3) @ torch.ones(2, 3)
                case Kind.LOSES_THE_DEVICE:
                    raise torch.AcceleratorError("CUDA error: an illegal memory access")
                case Kind.LOSES_A_PEER:
                    text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
                    raise torch.distributed.DistBackendError(text)

    def _fits(self) -> bool:
        return not self.schedule.decodes and self.schedule.num_prefill_tokens <= self._room_tokens
