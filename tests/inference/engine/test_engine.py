"""The engine's decisions, with an executor that counts instead of computing: what it runs, and what
it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.engine_costs import bookkeeping_ms_per_step
from inference.engine.step import PrefillAverage, Schedule
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    SequenceUsage,
    SubmitSequence,
)
from inference.protocol.load import PrefillSpeed
from inference.protocol.sampling import SamplingParams, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.counting_engine import STOP_ID, Harness, TimedExecutor


class HalfASecond(TimedExecutor):
    def seconds_of(self, schedule: Schedule) -> float:
        return 0.5


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
    harness.engine.executor = HalfASecond(harness)
    harness.submit("a", num_tokens=4, max_tokens=3)
    harness.now_s += 7.0  # in the queue
    *before, last = harness.drain()
    assert isinstance(last, SequenceStep)
    assert last.timing == SequenceTiming(
        queue_ms=7000.0, prefill_ms=500.0, decode_ms=1000.0, prefill_tokens=4
    )
    assert [step.timing for step in before if isinstance(step, SequenceStep)] == [None, None]


def test_a_traced_sequence_reports_its_prefill_with_its_first_token_or_its_end() -> None:
    harness = Harness(prefill_tokens_per_step=4)
    harness.engine.executor = HalfASecond(harness)
    harness.submit("a", num_tokens=8, is_traced=True)
    harness.submit("b", num_tokens=4)
    harness.submit("c", num_tokens=12, is_traced=True)
    harness.submit("d", num_tokens=4, is_traced=True)
    steps = [one for _ in range(4) for one in harness.step() if isinstance(one, SequenceStep)]
    assert [(one.sequence_id, one.prefill_ms) for one in steps] == [
        ("a", 1000.0),
        ("a", None),
        ("b", None),
        ("a", None),
        ("b", None),
    ]
    harness.cancel("c")
    harness.cancel("d")
    ended = [one for one in harness.step() if isinstance(one, SequenceCancelled)]
    assert [(one.sequence_id, one.used.prefill_ms) for one in ended] == [("c", 500.0), ("d", None)]


def test_context_ends_a_sequence() -> None:
    harness = Harness(context_tokens=10)
    harness.submit("a", num_tokens=9, max_tokens=50)
    last = harness.drain()[-1]
    assert isinstance(last, SequenceStep)
    assert (last.finish_reason, last.num_output_tokens) == ("length", 1)


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


@each_case("phase", ["queued", "prefilling", "decoding", "preempted"])
def test_cancel_frees_blocks_in_the_next_step(phase: str) -> None:
    harness = Harness(num_blocks=6, context_tokens=24, prefill_tokens_per_step=4, max_running=2)
    harness.submit("other", num_tokens=4, max_tokens=20)
    harness.submit("preempted", num_tokens=8, max_tokens=16)
    if phase == "queued":
        harness.submit("third")
    target = "third" if phase == "queued" else "preempted"
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


def test_a_crowd_is_served_in_steps_that_a_cancellation_can_wait_for() -> None:
    harness = Harness(num_blocks=4096, target_step_s=0.1, max_queue_wait_s=5.0)
    executor = TimedExecutor(harness)
    harness.engine.executor = executor
    for index in range(256):
        harness.submit(f"r{index}", num_tokens=20, max_tokens=40)
    outputs = harness.drain()
    ends = [o for o in outputs if isinstance(o, SequenceStep) and o.finish_reason]
    # None of the 256 running sequences is refused because serving all of them takes long.
    assert len(ends) == 256 and harness.now_s > 20
    assert max(executor.seconds) < 0.2
    busy = executor.seconds[20:-60]
    assert sum(busy) / len(busy) == pytest.approx(0.15, rel=0.15)


def test_bookkeeping_benchmark_measures_full_steps() -> None:
    assert bookkeeping_ms_per_step(num_sequences=8, num_steps=3) > 0


def slowdown(num_requests: int, max_tokens: int) -> float:
    """Returns the average's slowdown after that many prompts, one after the other, whose tokens
    take twice the expected time."""
    expected = PrefillSpeed(token_s=0.00025)
    harness = Harness(context_tokens=2000, num_blocks=500, prefill_average=PrefillAverage(expected))
    harness.engine.executor = TimedExecutor(harness)
    for number in range(num_requests):
        harness.submit(chr(33 + number), num_tokens=1000, max_tokens=max_tokens)
        harness.drain()
    speed = harness.engine.stats().prefill_speed
    assert speed is not None
    return speed.token_s / expected.token_s


def test_the_average_of_prompts_moves_with_each_and_not_by_steps_that_decode() -> None:
    assert slowdown(0, 1) == 1.0
    assert 1.0 < slowdown(1, 1) < slowdown(10, 1) < 2.0
    assert slowdown(88, 1) == pytest.approx(2.0, abs=0.15)
    assert slowdown(10, 4) == pytest.approx(slowdown(10, 1))


def test_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    harness = Harness(context_tokens=10)
    harness.submit("a", num_tokens=10)
    (refused,) = harness.step()
    assert isinstance(refused, SequenceFailed)
    assert refused.code == "context_length_exceeded"
    assert "10 tokens" in refused.message and "holds 10" in refused.message


@each_case("token_ids", [[], [3, 100], [-1]])
def test_token_outside_the_vocabulary_is_refused(token_ids: list[int]) -> None:
    harness = Harness()
    params = SamplingParams(max_tokens=1)
    harness.engine.submit(SubmitSequence(sequence_id="a", token_ids=token_ids, params=params))
    (refused,) = harness.step()
    assert isinstance(refused, SequenceFailed)
    assert refused.code == "bad_token_id"


@each_case("token_id", [-1, 100, 2**40])
@each_case(
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


def test_queue_timeout() -> None:
    harness = Harness(max_running=1)
    harness.submit("runs", max_tokens=40)
    harness.submit("waits")
    harness.step()
    harness.now_s = 61.0
    failed = [o for o in harness.step() if isinstance(o, SequenceFailed)]
    assert [(f.sequence_id, f.code) for f in failed] == [("waits", "queue_timeout")]
    assert harness.engine.stats().in_flight == 1


def test_a_shorter_wait_of_its_own_ends_in_the_queue_alone() -> None:
    harness = Harness(max_running=1)
    harness.submit("runs", max_tokens=40, max_queue_wait_s=5.0)
    harness.submit("waits")
    harness.submit("hurries", max_queue_wait_s=5.0)
    harness.submit("patient", max_queue_wait_s=100.0)
    harness.step()
    harness.now_s = 6.0
    failed = [o for o in harness.step() if isinstance(o, SequenceFailed)]
    assert [(f.sequence_id, f.code) for f in failed] == [("hurries", "queue_timeout")]
    harness.now_s = 61.0
    failed = [o for o in harness.step() if isinstance(o, SequenceFailed)]
    assert {f.sequence_id for f in failed} == {"waits", "patient"}


def test_beyond_the_slots_the_queue_has_its_limit_however_slow_the_steps() -> None:
    harness = Harness(num_blocks=4096, target_step_s=0.1, max_queue_wait_s=2.0, max_running=20)
    harness.engine.executor = TimedExecutor(harness)
    for index in range(60):
        harness.submit(f"r{index}", num_tokens=20, max_tokens=200)
    ends = [o for o in harness.drain() if isinstance(o, SequenceFailed)]
    assert {o.code for o in ends} == {"queue_timeout"}
    assert {o.sequence_id for o in ends} <= {f"r{index}" for index in range(20, 60)}
