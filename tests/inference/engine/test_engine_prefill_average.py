"""An engine keeps an average of how fast its requests' prompts go, by steps of prompts alone."""

from __future__ import annotations

import pytest

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.scheduling.scheduler import EngineLimits, Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.engine.step import PrefillAverage, Sampled, Schedule
from inference.protocol.engine import SubmitSequence
from inference.protocol.load import PrefillSpeed
from inference.protocol.sampling import SamplingParams

EXPECTED = PrefillSpeed(token_s=0.001)
DECODE_S = 5.0


class TimedExecutor:
    """A prompt token takes twice the expected time, a step that decodes very long."""

    now_s = 0.0

    def execute(self, schedule: Schedule) -> Sampled:
        self.now_s += schedule.num_prefill_tokens * 0.002
        self.now_s += DECODE_S if schedule.decodes else 0.0
        return Sampled([1] * len(schedule.sampled), {}, {})

    def recover(self, error: Exception) -> StepFault:
        return recover(error, "cpu")

    def forget(self, sequence: Sequence) -> None:
        pass


def slowdown(num_requests: int, max_tokens: int) -> float:
    """Returns the average's slowdown after that many prompts of a thousand tokens, one after the
    other."""
    executor = TimedExecutor()
    engine = Engine(
        executor,
        Scheduler(KVCache(64, 32), SchedulerLimits(prefill_tokens_per_step=250)),
        EngineLimits(context_tokens=2000, vocab_size=100),
        prefill_average=PrefillAverage(EXPECTED),
        clock=lambda: executor.now_s,
    )
    for number in range(num_requests):
        prompt = [number % 90 + 2] * 1000
        params = SamplingParams(max_tokens=max_tokens)
        engine.submit(SubmitSequence(sequence_id=str(number), token_ids=prompt, params=params))
        while engine.has_work:
            engine.step()
    speed = engine.stats().prefill_speed
    assert speed is not None
    return speed.token_s / EXPECTED.token_s


def test_it_moves_with_every_prompt() -> None:
    assert slowdown(0, 1) == 1.0
    assert 1.0 < slowdown(1, 1) < slowdown(10, 1) < 2.0
    assert slowdown(90, 1) == pytest.approx(2.0, abs=0.1)


def test_steps_that_decode_do_not_count() -> None:
    assert slowdown(10, 4) == pytest.approx(slowdown(10, 1))
