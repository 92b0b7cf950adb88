"""What an engine refuses, when it gives up, and what those that ended have used."""

from __future__ import annotations

from typing import Any

from benchmarks.measured_once import bookkeeping_ms_per_step
from inference.protocol import engine as protocol
from tests.cases import each_case
from tests.inference.engine.conftest import submit
from tests.inference.engine.test_run_ahead import Client


def steps_of(client: Client, num_steps: int = 1) -> list[Any]:
    return [output for _ in range(num_steps) for output in client.engine.step().outputs]


def ask(client: Client, name: str, num_tokens: int = 4, max_tokens: int = 8, **asked: Any) -> None:
    """Prompts differ from the first token on, so that nothing is shared."""
    client.prompts[name] = [len(client.prompts)] * num_tokens, max_tokens
    submit(client.engine, name, *client.prompts[name], **asked)


def test_how_long_the_engine_worked_is_reported_at_the_end_and_traced_before() -> None:
    client = Client(num_groups=0, prefill_tokens_per_step=4)
    client.device.step_s = 0.5
    ask(client, "a", num_tokens=8, max_tokens=3, is_traced=True)
    ask(client, "b")
    ask(client, "c", num_tokens=12, is_traced=True)
    ask(client, "d", is_traced=True)
    client.device.now_s += 7.0  # in the queue
    steps = [one for one in steps_of(client, 4) if isinstance(one, protocol.SequenceStep)]
    assert [one.sequence_id for one in steps] == [*"aabab"]
    assert [one.prefill_ms for one in steps] == [1000.0, None, None, None, None]
    timing = protocol.SequenceTiming(
        queue_ms=7000.0, prefill_ms=1000.0, decode_ms=1000.0, prefill_tokens=8
    )
    assert [one.timing for one in steps if one.timing] == [timing] == [steps[3].timing]
    for name in "cd":
        client.engine.cancel(protocol.CancelSequence(sequence_id=name))
    ended = [one for one in steps_of(client) if isinstance(one, protocol.SequenceCancelled)]
    assert [(one.sequence_id, one.used.prefill_ms) for one in ended] == [("c", 500.0), ("d", None)]


@each_case(
    ("phase", "num_steps", "num_prompt_tokens"),
    [("queued", 2, 0), ("prefilling", 2, 4), ("decoding", 4, 8), ("preempted", 0, 8)],
)
def test_cancel_frees_blocks_in_the_next_step(
    phase: str, num_steps: int, num_prompt_tokens: int
) -> None:
    client = Client(num_groups=0, num_blocks=6, prefill_tokens_per_step=4, max_running=2)
    ask(client, "other", max_tokens=20)
    ask(client, "second", num_tokens=8, max_tokens=16)
    target = "third" if phase == "queued" else "second"
    if phase == "queued":
        ask(client, target)
    reported = steps_of(client, num_steps)
    while phase == "preempted" and client.engine.stats().num_preemptions == 0:
        reported += steps_of(client)
    num_output_tokens = sum(output.sequence_id == target for output in reported)
    assert (num_output_tokens > 0) == (num_prompt_tokens == 8)
    client.engine.cancel(protocol.CancelSequence(sequence_id=target))
    (cancelled,) = [one for one in steps_of(client) if one.sequence_id == target]
    used = protocol.SequenceUsage(
        num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens
    )
    assert cancelled == protocol.SequenceCancelled(sequence_id=target, used=used)
    client.engine.scheduler.check_integrity()
    while client.engine.has_work:
        assert all(one.sequence_id != target for one in steps_of(client))
    assert client.engine.stats().kv_blocks_used == 0


def test_what_ended_ones_used() -> None:
    client = Client(num_groups=0)
    submit(client.engine, "a", [0] * 9, 1)
    steps_of(client)
    submit(client.engine, "a", [0] * 12, 9)
    steps_of(client)
    client.engine.cancel(protocol.CancelSequence(sequence_id="a"))
    used = protocol.SequenceUsage(num_prompt_tokens=12, num_cached_tokens=8, num_output_tokens=1)
    assert steps_of(client) == [protocol.SequenceCancelled(sequence_id="a", used=used)]
    for name in ("good", "bad"):
        ask(client, name, max_tokens=2)
    client.device.not_numbers = {"bad"}
    good, failed, end = steps_of(client, 2)
    assert (failed.sequence_id, failed.code) == ("bad", "numerical_error")
    assert failed.used == protocol.SequenceUsage(num_prompt_tokens=4), "its token is of no use"
    assert [one.finish_reason for one in (good, end)] == [None, "length"]


@each_case(
    ("token_ids", "asked", "code", "words"),
    [
        ([1] * 40, {}, "context_length_exceeded", "40 tokens"),
        ([1] * 40, {}, "context_length_exceeded", "holds 40"),
        *(([*ids], {}, "bad_token_id", "") for ids in ([], [3, 50], [-1])),
        *(
            ([1], {field: asked}, "bad_token_id", f"{field}: token id {token_id} ")
            for token_id in (-1, 50, 2**40)
            for field, asked in (
                ("logit_bias", {5: 1.0, token_id: 1.0}),
                ("stop_token_ids", [9, token_id]),
                ("thinking_limit", protocol.ThinkingLimit(max_tokens=1, end_token_id=token_id)),
                ("prediction", [3, token_id]),
            )
        ),
    ],
)
def test_refusals(token_ids: list[int], asked: dict[str, Any], code: str, words: str) -> None:
    client = Client(num_groups=0)
    submit(client.engine, "a", token_ids, 1, **asked)
    ask(client, "b", max_tokens=1)
    refused, answer = steps_of(client)
    assert (refused.sequence_id, refused.code) == ("a", code)
    assert words in refused.message
    assert isinstance(answer, protocol.SequenceStep) and answer.sequence_id == "b"


def test_a_full_queue_and_waiting_too_long() -> None:
    client = Client(num_groups=0, max_running=1, max_queue_depth=1)
    for name in ("runs", "waits", "refused"):
        ask(client, name)
    failed = [(one.sequence_id, one.code) for one in steps_of(client) if one.sequence_id != "runs"]
    assert failed == [("refused", "queue_full")]
    client = Client(num_groups=0, max_running=1)
    ask(client, "runs", max_tokens=30, max_queue_wait_s=5.0)
    ask(client, "waits")
    ask(client, "hurries", max_queue_wait_s=5.0)
    ask(client, "patient", max_queue_wait_s=100.0)
    steps_of(client)
    for now_s, names in ((6.0, ["hurries"]), (61.0, ["patient", "waits"])):
        client.device.now_s = now_s
        outputs = [one for one in steps_of(client) if one.sequence_id != "runs"]
        assert sorted(one.sequence_id for one in outputs) == names
        assert {one.code for one in outputs} == {"queue_timeout"}
    assert client.engine.stats().in_flight == 1


def test_bookkeeping_benchmark_measures_full_steps() -> None:
    assert bookkeeping_ms_per_step(num_sequences=8, num_steps=3) > 0
