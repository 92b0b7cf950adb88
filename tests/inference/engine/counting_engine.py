"""An engine whose executor counts instead of computing."""

from __future__ import annotations

from typing import Any

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.scheduling.scheduler import EngineLimits, Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.engine.step import PrefillAverage, Sampled, Schedule
from inference.protocol.engine import (
    CancelSequence,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams

STOP_ID = 99


class CountingExecutor:
    """A sequence's next token is its length; ``STOP_ID`` at ``stop_at``; row failures on demand."""

    def __init__(self) -> None:
        self.stop_at: int | None = None
        self.failing: set[str] = set()
        self.steps: list[tuple[list[str], list[tuple[str, int, int]]]] = []
        self.forgotten: list[str] = []

    def execute(self, schedule: Schedule) -> Sampled:
        self.steps.append(
            (
                [s.sequence_id for s in schedule.decodes],
                [(c.sequence.sequence_id, c.start, c.end) for c in schedule.prefills],
            )
        )
        rows = schedule.sampled
        tokens = [STOP_ID if len(s.token_ids) == self.stop_at else len(s.token_ids) for s in rows]
        failed = {i: 1 for i, s in enumerate(rows) if s.sequence_id in self.failing}
        return Sampled(tokens, failed, {})

    def recover(self, error: Exception) -> StepFault:
        return recover(error, "cpu")

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence.sequence_id)


class Harness:
    def __init__(
        self,
        *,
        num_blocks: int = 64,
        context_tokens: int = 64,
        prefill_average: PrefillAverage | None = None,
        **limits: Any,
    ) -> None:
        self.now_s = 0.0
        self.executor = CountingExecutor()
        self.engine = Engine(
            self.executor,
            Scheduler(KVCache(num_blocks, 4), SchedulerLimits(**limits)),
            EngineLimits(context_tokens=context_tokens, vocab_size=100),
            prefill_average=prefill_average,
            clock=lambda: self.now_s,
            check_when_idle=True,
        )

    def submit(
        self,
        sequence_id: str,
        num_tokens: int = 4,
        max_tokens: int = 8,
        *,
        is_traced: bool = False,
        max_queue_wait_s: float | None = None,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[STOP_ID])
        # Prompts differ from the first token on, so that nothing is shared unless a test wants it.
        prompt = [sum(sequence_id.encode()) % 90] * num_tokens
        self.engine.submit(
            SubmitSequence(
                sequence_id=sequence_id,
                token_ids=prompt,
                params=params,
                is_traced=is_traced,
                max_queue_wait_s=max_queue_wait_s,
            )
        )

    def cancel(self, sequence_id: str) -> None:
        self.engine.cancel(CancelSequence(sequence_id=sequence_id))

    def step(self) -> list[SequenceStep | SequenceFailed | SequenceCancelled]:
        return self.engine.step().outputs

    def drain(self) -> list[SequenceStep | SequenceFailed | SequenceCancelled]:
        outputs = []
        while self.engine.has_work:
            outputs += self.step()
        return outputs


class TimedExecutor(CountingExecutor):
    """Takes its time, on the harness's clock: so much a row."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self.harness = harness
        self.seconds: list[float] = []

    def execute(self, schedule: Schedule) -> Sampled:
        took_s = self.seconds_of(schedule)
        self.seconds.append(took_s)
        self.harness.now_s += took_s
        return super().execute(schedule)

    def seconds_of(self, schedule: Schedule) -> float:
        return 0.002 * len(schedule.decodes) + 0.0005 * schedule.num_prefill_tokens
