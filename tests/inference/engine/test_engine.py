"""The engine's decisions, with an executor that counts instead of computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.engine.bookkeeping import bookkeeping_ms_per_step
from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.faults.fault_classes import recover
from inference.engine.faults.kinds import StepFault
from inference.engine.sampling.sampled import Sampled
from inference.engine.scheduling.admission import EngineLimits
from inference.engine.scheduling.limits import SchedulerLimits
from inference.engine.scheduling.schedule import Schedule
from inference.engine.scheduling.scheduler import Scheduler
from inference.engine.scheduling.sequence import Sequence
from inference.protocol.engine import (
    CancelSequence,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams, ThinkingLimit

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
    def __init__(self, *, num_blocks: int = 64, context_tokens: int = 64, **limits: Any) -> None:
        self.now_s = 0.0
        self.executor = CountingExecutor()
        self.engine = Engine(
            self.executor,
            Scheduler(KVCache(num_blocks, 4), SchedulerLimits(**limits)),
            EngineLimits(context_tokens=context_tokens, vocab_size=100),
            clock=lambda: self.now_s,
            check_when_idle=True,
        )

    def submit(self, sequence_id: str, num_tokens: int = 4, max_tokens: int = 8) -> None:
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=[STOP_ID])
        # Prompts differ from the first token on, so that nothing is shared unless a test wants it.
        prompt = [sum(sequence_id.encode()) % 90] * num_tokens
        self.engine.submit(SubmitSequence(sequence_id=sequence_id, token_ids=prompt, params=params))

    def cancel(self, sequence_id: str) -> None:
        self.engine.cancel(CancelSequence(sequence_id=sequence_id))

    def step(self) -> list[SequenceStep | SequenceFailed | SequenceCancelled]:
        return self.engine.step().outputs

    def drain(self) -> list[SequenceStep | SequenceFailed | SequenceCancelled]:
        outputs = []
        while self.engine.has_work:
            outputs += self.step()
        return outputs


def test_one_sequence_to_max_tokens() -> None:
    harness = Harness()
    harness.submit("a", num_tokens=4, max_tokens=3)
    outputs = harness.drain()
    assert [o.token_ids for o in outputs if isinstance(o, SequenceStep)] == [[4], [5], [6]]
    last = outputs[-1]
    assert isinstance(last, SequenceStep)
    assert (last.finish_reason, last.num_output_tokens) == ("length", 3)
    assert harness.engine.stats().kv_blocks_used == 0
    assert harness.executor.forgotten == ["a"]


def test_stop_token_is_counted_and_not_emitted() -> None:
    harness = Harness()
    harness.executor.stop_at = 6
    harness.submit("a", num_tokens=4)
    last = harness.drain()[-1]
    assert isinstance(last, SequenceStep)
    assert (last.token_ids, last.finish_reason, last.num_output_tokens) == ([], "stop", 3)


def test_the_end_reports_how_long_the_engine_worked_on_it() -> None:
    harness = Harness()
    execute = harness.executor.execute

    def execute_in_half_a_second(schedule: Schedule) -> Sampled:
        harness.now_s += 0.5
        return execute(schedule)

    harness.executor.execute = execute_in_half_a_second  # type: ignore[method-assign]
    harness.submit("a", num_tokens=4, max_tokens=3)
    harness.now_s += 7.0  # in the queue
    *before, last = harness.drain()
    assert isinstance(last, SequenceStep)
    assert last.timing == SequenceTiming(
        queue_ms=7000.0, prefill_ms=500.0, decode_ms=1000.0, prefill_tokens=4
    )
    assert [step.timing for step in before if isinstance(step, SequenceStep)] == [None, None]


def test_context_ends_a_sequence() -> None:
    harness = Harness(context_tokens=10)
    harness.submit("a", num_tokens=9, max_tokens=50)
    last = harness.drain()[-1]
    assert isinstance(last, SequenceStep)
    assert (last.finish_reason, last.num_output_tokens) == ("length", 1)


def test_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    harness = Harness(context_tokens=10)
    harness.submit("a", num_tokens=10)
    (refused,) = harness.step()
    assert isinstance(refused, SequenceFailed)
    assert refused.code == "context_length_exceeded"
    assert "10 tokens" in refused.message and "holds 10" in refused.message


@pytest.mark.parametrize("token_ids", [[], [3, 100], [-1]])
def test_token_outside_the_vocabulary_is_refused(token_ids: list[int]) -> None:
    harness = Harness()
    params = SamplingParams(max_tokens=1)
    harness.engine.submit(SubmitSequence(sequence_id="a", token_ids=token_ids, params=params))
    (refused,) = harness.step()
    assert isinstance(refused, SequenceFailed)
    assert refused.code == "bad_token_id"


@pytest.mark.parametrize("token_id", [-1, 100, 2**40])
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("logit_bias", lambda token_id: {"logit_bias": {5: 1.0, token_id: 1.0}}),
        ("stop_token_ids", lambda token_id: {"stop_token_ids": [STOP_ID, token_id]}),
        (
            "thinking_limit",
            lambda token_id: {"thinking_limit": ThinkingLimit(max_tokens=1, end_token_id=token_id)},
        ),
        ("prediction", None),
    ],
)
def test_any_other_token_outside_the_vocabulary_is_refused_by_its_field(
    field: str, given: Callable[[int], dict[str, Any]] | None, token_id: int
) -> None:
    harness = Harness()
    command = SubmitSequence(
        sequence_id="a",
        token_ids=[1],
        params=SamplingParams(max_tokens=1, **(given(token_id) if given else {})),
        prediction=[] if given else [3, token_id],
    )
    harness.engine.submit(command)
    harness.submit("b", max_tokens=1)
    refused, answer = harness.step()
    assert isinstance(refused, SequenceFailed)
    assert (refused.sequence_id, refused.code) == ("a", "bad_token_id")
    assert refused.message.startswith(f"{field}: token id {token_id} ")
    assert isinstance(answer, SequenceStep) and answer.sequence_id == "b"


def test_queue_full() -> None:
    harness = Harness(max_running=1, max_queue_depth=1)
    for sequence_id in ("runs", "waits", "refused"):
        harness.submit(sequence_id)
    failed = [o for o in harness.step() if isinstance(o, SequenceFailed)]
    assert [(f.sequence_id, f.code) for f in failed] == [("refused", "queue_full")]


def test_queue_full_when_blocks_and_not_slots_are_short() -> None:
    harness = Harness(num_blocks=4, context_tokens=16, max_running=9, max_queue_depth=1)
    harness.submit("runs", num_tokens=12)
    harness.submit("waits", num_tokens=12)
    harness.step()
    harness.submit("refused", num_tokens=1)
    failed = [o for o in harness.step() if isinstance(o, SequenceFailed)]
    assert [(f.sequence_id, f.code) for f in failed] == [("refused", "queue_full")]


def test_a_long_wait_is_warned_of_once_with_the_requests_id(caplog) -> None:
    harness = Harness(max_running=1)
    harness.submit("runs", max_tokens=40)
    harness.submit("waits")
    for now_s in (9.9, 10.0, 30.0):
        harness.now_s = now_s
        harness.step()
    assert [record.getMessage() for record in caplog.records] == [
        "request waits has waited 10 s for a place"
    ]


def test_queue_timeout() -> None:
    harness = Harness(max_running=1)
    harness.submit("runs", max_tokens=40)
    harness.submit("waits")
    harness.step()
    harness.now_s = 61.0
    failed = [o for o in harness.step() if isinstance(o, SequenceFailed)]
    assert [(f.sequence_id, f.code) for f in failed] == [("waits", "queue_timeout")]
    assert harness.engine.stats().in_flight == 1


def test_chunked_prefill_runs_beside_decodes() -> None:
    harness = Harness(prefill_tokens_per_step=5)
    harness.submit("short", num_tokens=2)
    harness.step()
    harness.submit("long", num_tokens=12)
    for _ in range(3):
        harness.step()
    assert harness.executor.steps[1:] == [
        (["short"], [("long", 0, 4)]),
        (["short"], [("long", 4, 8)]),
        (["short"], [("long", 8, 12)]),
    ]


def test_newest_is_preempted_and_everybody_finishes() -> None:
    harness = Harness(num_blocks=6, context_tokens=24)
    for sequence_id in ("a", "b", "c"):
        harness.submit(sequence_id, num_tokens=4, max_tokens=14)
    outputs = harness.drain()
    assert harness.engine.stats().num_preemptions > 0
    for sequence_id in ("a", "b", "c"):
        mine = [o for o in outputs if isinstance(o, SequenceStep) and o.sequence_id == sequence_id]
        assert [t for o in mine for t in o.token_ids] == list(range(4, 18))
        assert [o.num_cached_tokens for o in mine] == [0] + [None] * 13
    finished = [o.sequence_id for o in outputs if isinstance(o, SequenceStep) and o.finish_reason]
    assert finished[0] == "a"


@pytest.mark.parametrize("phase", ["queued", "prefilling", "decoding", "preempted"])
def test_cancel_frees_blocks_in_the_next_step(phase: str) -> None:
    harness = Harness(num_blocks=6, context_tokens=24, prefill_tokens_per_step=4, max_running=2)
    harness.submit("other", num_tokens=4, max_tokens=20)
    harness.submit("victim", num_tokens=8, max_tokens=16)
    if phase == "queued":
        harness.submit("third")
    target = "third" if phase == "queued" else "victim"
    num_steps = {"queued": 2, "prefilling": 2, "decoding": 4, "preempted": 0}[phase]
    reported = [output for _ in range(num_steps) for output in harness.step()]
    while phase == "preempted" and harness.engine.stats().num_preemptions == 0:
        reported += harness.step()
    chunks = [chunk for _, prefills in harness.executor.steps for chunk in prefills]
    used = SequenceUsage(
        num_prompt_tokens=min(
            8, max((end for name, _, end in chunks if name == target), default=0)
        ),
        num_output_tokens=sum(output.sequence_id == target for output in reported),
    )
    assert (used.num_prompt_tokens, used.num_output_tokens > 0) == {
        "queued": (0, False),
        "prefilling": (4, False),
        "decoding": (8, True),
        "preempted": (8, True),
    }[phase]
    harness.cancel(target)
    outputs = harness.step()
    assert SequenceCancelled(sequence_id=target, used=used) in outputs
    harness.engine.check_integrity()
    assert all(o.sequence_id != target for o in harness.drain())
    assert harness.engine.stats().kv_blocks_used == 0


def test_what_a_cancelled_prompt_took_from_the_cache_is_a_count_of_its_own() -> None:
    harness = Harness()
    harness.submit("a", num_tokens=9, max_tokens=1)
    harness.drain()
    harness.submit("a", num_tokens=12, max_tokens=9)
    harness.step()
    harness.cancel("a")
    (cancelled,) = harness.step()
    used = SequenceUsage(num_prompt_tokens=12, num_cached_tokens=8, num_output_tokens=1)
    assert cancelled == SequenceCancelled(sequence_id="a", used=used)


def test_cancel_of_an_unknown_id_is_nothing() -> None:
    harness = Harness()
    harness.cancel("nobody")
    assert not harness.engine.has_work


def test_row_that_is_not_a_number_fails_alone() -> None:
    harness = Harness()
    harness.submit("good", max_tokens=2)
    harness.submit("bad", max_tokens=2)
    harness.executor.failing = {"bad"}
    outputs = harness.drain()
    failed = [o for o in outputs if isinstance(o, SequenceFailed)]
    assert [(f.sequence_id, f.code) for f in failed] == [("bad", "numerical_error")]
    assert failed[0].used == SequenceUsage(num_prompt_tokens=4), "its token is of no use"
    assert [o.finish_reason for o in outputs if isinstance(o, SequenceStep)] == [None, "length"]


class TimedExecutor(CountingExecutor):
    """Takes its time, on the harness's clock: so much a row."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self.harness = harness
        self.seconds: list[float] = []

    def execute(self, schedule: Schedule) -> Sampled:
        took_s = 0.002 * len(schedule.decodes) + 0.0005 * schedule.num_prefill_tokens
        self.seconds.append(took_s)
        self.harness.now_s += took_s
        return super().execute(schedule)


def test_a_crowd_is_served_in_steps_of_a_tenth_of_a_second() -> None:
    harness = Harness(num_blocks=4096, target_step_s=0.1, max_queue_wait_s=5.0)
    executor = TimedExecutor(harness)
    harness.engine._executor = executor
    for index in range(256):
        harness.submit(f"r{index}", num_tokens=20, max_tokens=40)
    outputs = harness.drain()
    ends = [o for o in outputs if isinstance(o, SequenceStep) and o.finish_reason]
    # Nobody with one of the 256 seats is refused because it takes long to serve them all.
    assert len(ends) == 256 and harness.now_s > 20
    assert max(executor.seconds) < 0.15
    busy = executor.seconds[20:-60]
    assert sum(busy) / len(busy) == pytest.approx(0.1, rel=0.15)


def test_beyond_the_slots_the_queue_has_its_limit_however_slow_the_steps() -> None:
    harness = Harness(num_blocks=4096, target_step_s=0.1, max_queue_wait_s=2.0, max_running=20)
    harness.engine._executor = TimedExecutor(harness)
    for index in range(60):
        harness.submit(f"r{index}", num_tokens=20, max_tokens=200)
    ends = [o for o in harness.drain() if isinstance(o, SequenceFailed)]
    assert {o.code for o in ends} == {"queue_timeout"}
    assert {o.sequence_id for o in ends} <= {f"r{index}" for index in range(20, 60)}


def test_bookkeeping_benchmark_measures_full_steps() -> None:
    assert bookkeeping_ms_per_step(num_sequences=8, num_steps=3) > 0
