"""The engine's decisions, with an executor that counts instead of computing: what it runs, and what
it refuses."""

from __future__ import annotations

from typing import Any

from benchmarks.measured_once import bookkeeping_ms_per_step
from inference.engine.engine import Engine
from inference.engine.errors import StepFault
from inference.engine.faults import recover
from inference.engine.kv_cache import KVCache
from inference.engine.scheduler import EngineLimits, Scheduler
from inference.engine.sequence import Sequence
from inference.engine.step import Sampled, Schedule
from inference.engine.waiting_queue import SchedulerLimits
from inference.protocol.engine import (
    CancelSequence,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
    ThinkingLimit,
)
from tests.cases import each_case
from tests.inference.engine.conftest import submit

STOP_ID = 99


class CountingExecutor:
    """A sequence's next token is its length; ``STOP_ID`` at ``stop_at``; row failures on demand. A
    step takes ``step_s`` on the harness's clock."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.stop_at: int | None = None
        self.failing: set[str] = set()
        self.step_s = 0.0
        self.forgotten: list[str] = []

    def execute(self, schedule: Schedule) -> Sampled:
        self.harness.now_s += self.step_s
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
        self.executor = CountingExecutor(self)
        self.engine = Engine(
            self.executor,
            Scheduler(KVCache(num_blocks, 4), SchedulerLimits(**limits)),
            EngineLimits(context_tokens=context_tokens, vocab_size=100),
            clock=lambda: self.now_s,
            check_when_idle=True,
        )

    def submit(self, name: str, num_tokens: int = 4, max_tokens: int = 8, **asked: Any) -> None:
        # Prompts differ from the first token on, so that nothing is shared unless a test wants it.
        prompt = [sum(name.encode()) % 90] * num_tokens
        submit(self.engine, name, prompt, max_tokens, stop_token_ids=[STOP_ID], **asked)

    def cancel(self, sequence_id: str) -> None:
        self.engine.cancel(CancelSequence(sequence_id=sequence_id))

    def step(self) -> list[SequenceStep | SequenceFailed | SequenceCancelled]:
        return self.engine.step().outputs

    def drain(self) -> list[SequenceStep | SequenceFailed | SequenceCancelled]:
        outputs = []
        while self.engine.has_work:
            outputs += self.step()
        return outputs


def test_a_sequence_to_its_end() -> None:
    for num_tokens, max_tokens, stop_at, token_ids, finish_reason in (
        (4, 3, None, [[4], [5], [6]], "length"),
        (4, 8, 6, [[4], [5], []], "stop"),  # a stop token is counted, and not emitted
        (9, 50, None, [[9]], "length"),  # the context ends
    ):
        harness = Harness(context_tokens=10)
        harness.executor.stop_at = stop_at
        harness.submit("a", num_tokens, max_tokens)
        harness.cancel("nobody")
        steps = [step for step in harness.drain() if isinstance(step, SequenceStep)]
        assert [step.token_ids for step in steps] == token_ids
        reasons = [step.finish_reason for step in steps]
        assert reasons == [None] * (len(token_ids) - 1) + [finish_reason]
        assert steps[-1].num_output_tokens == len(token_ids)
        assert harness.engine.stats().kv_blocks_used == 0
        assert harness.executor.forgotten == ["a"]


def test_how_long_the_engine_worked_is_reported_at_the_end_and_traced_before() -> None:
    harness = Harness(prefill_tokens_per_step=4)
    harness.executor.step_s = 0.5
    harness.submit("a", num_tokens=8, max_tokens=3, is_traced=True)
    harness.submit("b", num_tokens=4)
    harness.submit("c", num_tokens=12, is_traced=True)
    harness.submit("d", num_tokens=4, is_traced=True)
    harness.now_s += 7.0  # in the queue
    steps = [one for _ in range(4) for one in harness.step() if isinstance(one, SequenceStep)]
    assert [one.sequence_id for one in steps] == [*"aabab"]
    assert [one.prefill_ms for one in steps] == [1000.0, None, None, None, None]
    timing = SequenceTiming(queue_ms=7000.0, prefill_ms=1000.0, decode_ms=1000.0, prefill_tokens=8)
    assert [one.timing for one in steps if one.timing] == [timing] == [steps[3].timing]
    harness.cancel("c")
    harness.cancel("d")
    ended = [one for one in harness.step() if isinstance(one, SequenceCancelled)]
    assert [(one.sequence_id, one.used.prefill_ms) for one in ended] == [("c", 500.0), ("d", None)]


@each_case(
    ("phase", "num_steps", "num_prompt_tokens"),
    [("queued", 2, 0), ("prefilling", 2, 4), ("decoding", 4, 8), ("preempted", 0, 8)],
)
def test_cancel_frees_blocks_in_the_next_step(
    phase: str, num_steps: int, num_prompt_tokens: int
) -> None:
    harness = Harness(num_blocks=6, context_tokens=24, prefill_tokens_per_step=4, max_running=2)
    harness.submit("other", num_tokens=4, max_tokens=20)
    harness.submit("preempted", num_tokens=8, max_tokens=16)
    if phase == "queued":
        harness.submit("queued")
    target = "queued" if phase == "queued" else "preempted"
    reported = [output for _ in range(num_steps) for output in harness.step()]
    while phase == "preempted" and harness.engine.stats().num_preemptions == 0:
        reported += harness.step()
    num_output_tokens = sum(output.sequence_id == target for output in reported)
    assert (num_output_tokens > 0) == (num_prompt_tokens == 8)
    used = SequenceUsage(num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens)
    harness.cancel(target)
    assert SequenceCancelled(sequence_id=target, used=used) in harness.step()
    harness.engine.check_integrity()
    assert all(o.sequence_id != target for o in harness.drain())
    assert harness.engine.stats().kv_blocks_used == 0


def test_what_ended_ones_used() -> None:
    harness = Harness()
    harness.submit("a", num_tokens=9, max_tokens=1)
    harness.drain()
    harness.submit("a", num_tokens=12, max_tokens=9)
    harness.step()
    harness.cancel("a")
    (cancelled,) = harness.step()
    used = SequenceUsage(num_prompt_tokens=12, num_cached_tokens=8, num_output_tokens=1)
    assert cancelled == SequenceCancelled(sequence_id="a", used=used)
    harness.submit("good", max_tokens=2)
    harness.submit("bad", max_tokens=2)
    harness.executor.failing = {"bad"}
    outputs = harness.drain()
    (failed,) = [o for o in outputs if isinstance(o, SequenceFailed)]
    assert (failed.sequence_id, failed.code) == ("bad", "numerical_error")
    assert failed.used == SequenceUsage(num_prompt_tokens=4), "its token is of no use"
    assert [o.finish_reason for o in outputs if isinstance(o, SequenceStep)] == [None, "length"]


@each_case(
    ("token_ids", "asked", "code", "words"),
    [
        ([1] * 10, {}, "context_length_exceeded", "10 tokens"),
        ([1] * 10, {}, "context_length_exceeded", "holds 10"),
        *(([*ids], {}, "bad_token_id", "") for ids in ([], [3, 100], [-1])),
        *(
            ([1], {field: asked}, "bad_token_id", f"{field}: token id {token_id} ")
            for token_id in (-1, 100, 2**40)
            for field, asked in (
                ("logit_bias", {5: 1.0, token_id: 1.0}),
                ("stop_token_ids", [STOP_ID, token_id]),
                ("thinking_limit", ThinkingLimit(max_tokens=1, end_token_id=token_id)),
                ("prediction", [3, token_id]),
            )
        ),
    ],
)
def test_refusals(token_ids: list[int], asked: dict[str, Any], code: str, words: str) -> None:
    harness = Harness(context_tokens=10)
    submit(harness.engine, "a", token_ids, 1, **asked)
    harness.submit("b", max_tokens=1)
    refused, answer = harness.step()
    assert isinstance(refused, SequenceFailed)
    assert (refused.sequence_id, refused.code) == ("a", code)
    assert words in refused.message
    assert isinstance(answer, SequenceStep) and answer.sequence_id == "b"


def test_a_full_queue_and_waiting_too_long() -> None:
    def failures() -> list[tuple[str, str]]:
        return [(o.sequence_id, o.code) for o in harness.step() if isinstance(o, SequenceFailed)]

    harness = Harness(max_running=1, max_queue_depth=1)
    for sequence_id in ("runs", "waits", "refused"):
        harness.submit(sequence_id)
    assert failures() == [("refused", "queue_full")]
    harness = Harness(max_running=1)
    harness.submit("runs", max_tokens=40, max_queue_wait_s=5.0)
    for sequence_id, waits in (("waits", None), ("hurries", 5.0), ("patient", 100.0)):
        harness.submit(sequence_id, **({"max_queue_wait_s": waits} if waits else {}))
    harness.step()
    harness.now_s = 6.0
    assert failures() == [("hurries", "queue_timeout")]
    harness.now_s = 61.0
    assert sorted(failures()) == [("patient", "queue_timeout"), ("waits", "queue_timeout")]
    assert harness.engine.stats().in_flight == 1


def test_bookkeeping_benchmark_measures_full_steps() -> None:
    assert bookkeeping_ms_per_step(num_sequences=8, num_steps=3) > 0
