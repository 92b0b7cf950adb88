"""The engine's own Python in a decode step, timed with an executor that does nothing."""

from __future__ import annotations

import statistics
import time

from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.kv_cache import KVCache
from inference.engine.scheduler import EngineLimits, Scheduler
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled, Schedule
from inference.engine.waiting_queue import SchedulerLimits
from inference.protocol.engine import SamplingParams, SubmitSequence

PROMPT_TOKENS = 128
VOCAB_SIZE = 50_000


class FreeExecutor:
    """Answers every row with a token at no cost."""

    def execute(self, schedule: Schedule) -> Sampled:
        return Sampled([7] * len(schedule.sampled), {}, {})

    def recover(self, error: Exception) -> StepFault:
        raise error

    def forget(self, sequence: Sequence) -> None:
        pass


def bookkeeping_ms_per_step(num_sequences: int = 256, num_steps: int = 200) -> float:
    """Median milliseconds of a step in which ``num_sequences`` decode, one token each."""
    num_blocks = num_sequences * 16
    engine = Engine(
        FreeExecutor(),
        Scheduler(
            KVCache(num_blocks),
            SchedulerLimits(max_running=num_sequences, max_queue_depth=num_sequences),
        ),
        EngineLimits(context_tokens=512, vocab_size=VOCAB_SIZE),
    )
    for index in range(num_sequences):
        engine.submit(
            SubmitSequence(
                sequence_id=f"sequence-{index}",
                token_ids=[index, *range(PROMPT_TOKENS - 1)],
                params=SamplingParams(max_tokens=512, stop_token_ids=[2]),
            )
        )
    while engine.stats().queue_depth > 0:
        engine.step()
    engine.step()
    seconds = []
    for _ in range(num_steps):
        started_s = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds) * 1e3
