"""Sequences that the engine refuses, and those that wait for a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inference.protocol.engine import SequenceFailed, SequenceStep, SubmitSequence
from inference.protocol.sampling import SamplingParams, ThinkingLimit
from tests.cases import each_case
from tests.inference.engine.counting_engine import STOP_ID, Harness, TimedExecutor


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
