"""A scheduler of a few blocks, its sequences and its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inference.engine.cache.kv_cache import KVCache
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.sequence import Sequence
from inference.engine.step import Schedule
from tests.inference.engine import asking
from tests.inference.engine.scheduling.test_scheduler import FixedPace

BLOCK_TOKENS = 4
PACE = FixedPace(tokens=100)


def sequence_of(name: str, num_prompt_tokens: int, max_tokens: int = 9, **own: Any) -> Sequence:
    """A sequence whose prompt no other one shares."""
    prompt = [ord(name[0]) + index for index in range(num_prompt_tokens)]
    own = {"account": "a", "arrival": int(name[1:] or 0) * 100 + ord(name[0])} | own
    return asking.sequence_of(prompt, name=name, max_tokens=max_tokens, **own)


def scheduler_of(
    sequences: Iterable[Sequence] = (), *, num_blocks: int = 200, max_running: int = 8
) -> Scheduler:
    cache = KVCache(num_blocks, BLOCK_TOKENS)
    scheduler = Scheduler(cache, SchedulerLimits(max_running=max_running, max_queue_depth=4))
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler


def step(scheduler: Scheduler, pace: FixedPace = PACE) -> Schedule:
    """Every token is a 7."""
    schedule = scheduler.schedule(pace)
    scheduler.commit(schedule, [7] * len(schedule.sampled))
    scheduler.check_integrity()
    return schedule


def chunks(schedule: Schedule) -> list[tuple[str, int, int, bool]]:
    return [(c.sequence.sequence_id, c.start, c.end, c.is_last) for c in schedule.prefills]
