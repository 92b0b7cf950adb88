"""Outputs are batched before they are sent, the ends of sequences are logged, and ``Shutdown`` does
not end the process before a fault that another thread reports."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.errors import EngineExit
from inference.engine.serving import process
from inference.engine.serving.loop import (
    SEND_WITHIN_S,
    STATS_INTERVAL_S,
    OutputBatcher,
    logging_ends,
)
from inference.protocol.engine import (
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    Shutdown,
    StepOutputs,
)
from tests.cases import each_case
from tests.inference.engine.scheduling.test_run_ahead import Client
from tests.inference.reports import engine_stats

FIRST = SequenceStep(sequence_id="s", token_ids=[1], num_cached_tokens=0)
TOKEN = SequenceStep(sequence_id="s", token_ids=[2])
LAST = SequenceStep(sequence_id="s", token_ids=[3], finish_reason="length", num_output_tokens=3)
FAILED = SequenceFailed(sequence_id="s", code="engine_error", message="It broke.")
CANCELLED = SequenceCancelled(sequence_id="s")


def step(*outputs: Any, number: int = 0) -> StepOutputs:
    stats = engine_stats(in_flight=number)
    return StepOutputs(outputs=list(outputs), stats=stats)


def batcher(sent: list[StepOutputs]) -> OutputBatcher:
    found = OutputBatcher(sent.append)
    found.record_sent(0.0)
    return found


def sizes(sent: list[StepOutputs]) -> list[int]:
    return [len(message.outputs) for message in sent]


@each_case(("step_s", "wanted"), [(0.003, {6}), (0.015, {1})])
def test_short_steps_are_reported_together_and_no_token_is_held_too_long(
    step_s: float, wanted: set[int]
) -> None:
    sent: list[StepOutputs] = []
    neuron, now_s, made_s = batcher(sent), 0.0, []
    for _ in range(100):
        now_s += step_s
        made_s.append(now_s)
        neuron.add(step(TOKEN), now_s=now_s, next_step_s=step_s)
        held = made_s[sum(sizes(sent)) :]
        assert not held or now_s + step_s - held[0] <= SEND_WITHIN_S
    assert set(sizes(sent)) == wanted


@each_case("output", [FIRST, LAST, FAILED, CANCELLED, None])
def test_what_is_waited_for_is_reported_at_once(output: Any) -> None:
    sent: list[StepOutputs] = []
    neuron = batcher(sent)
    neuron.flush(0.001)
    neuron.add(step(TOKEN), now_s=0.001, next_step_s=0.001)
    assert sent == []
    if output is None:
        neuron.flush(0.002)
        neuron.flush(0.003)
        assert sizes(sent) == [1]
        return
    neuron.add(step(TOKEN, output, number=7), now_s=0.002, next_step_s=0.001)
    (message,) = sent
    assert message == step(TOKEN, TOKEN, output, number=7), "in order, with the newest stats"


def test_steps_without_tokens_are_reported_now_and_then() -> None:
    sent: list[StepOutputs] = []
    neuron = batcher(sent)
    for number in range(1, 31):
        neuron.add(step(number=number), now_s=0.1 * number, next_step_s=0.1)
    assert [message.stats.in_flight for message in sent] == [10, 20, 30]
    assert neuron.is_quiet(3.0 + STATS_INTERVAL_S)
    neuron.record_sent(3.5)
    assert not neuron.is_quiet(3.0 + STATS_INTERVAL_S)


@given(st.lists(st.tuples(st.sampled_from([FIRST, TOKEN, LAST, None]), st.floats(0, 0.05))))
def test_nothing_is_lost_or_moved(steps: Any) -> None:
    sent: list[StepOutputs] = []
    neuron, now_s = batcher(sent), 0.0
    for output, step_s in steps:
        now_s += step_s
        neuron.add(step(*[output] * (output is not None)), now_s=now_s, next_step_s=step_s)
    neuron.flush(now_s)
    assert [o for message in sent for o in message.outputs] == [o for o, _ in steps if o]


def test_an_engine_reports_when_prompts_make_its_steps_long() -> None:
    client = Client(prefill_tokens_per_step=4)
    reported = [client.engine.has_prompts]
    client.submit([0] * 6, 3)
    while client.engine.has_work:
        reported.append(client.engine.has_prompts)
        client.step()
    assert reported == [False, True, True, False, False]


def test_a_line_for_each_end_and_none_for_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    timing = SequenceTiming(queue_ms=12.0, prefill_ms=100.0, decode_ms=500.0, prefill_tokens=50)
    ends = SequenceStep(
        sequence_id="s", token_ids=[8], finish_reason="length", num_output_tokens=11, timing=timing
    )
    outputs = step(TOKEN, ends, FAILED)
    sent: list[Any] = []
    logging_ends(sent.append)(outputs)
    (message,) = sent
    assert message.stats == outputs.stats
    assert [message.outputs[0], message.outputs[2]] == [TOKEN, FAILED]
    memory_bytes = message.outputs[1].timing.memory_bytes
    assert memory_bytes > 1_000_000
    finished, failed = caplog.records
    assert (finished.levelname, failed.levelname) == ("INFO", "WARNING")
    words = finished.getMessage().split()
    assert words[:3] == ["s", "length", "completion=11"]
    assert {"queue_ms=12", "prefill_ms=100", "prefill_tokens=50", "decode_ms=500"} <= {*words}
    assert {"prefill_tokens_per_s=500", "decode_tokens_per_s=20.0", "kv_blocks=0/64"} <= {*words}
    assert f"memory_bytes={memory_bytes}" in words
    assert failed.getMessage() == "s engine_error: It broke."


def test_a_fault_that_another_thread_reports_wins() -> None:
    codes: list[EngineExit] = []
    asleep: Any = SimpleNamespace(engine=None, has_work=False, close=lambda: None)
    inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
    inbox.put(Shutdown())
    messenger: Any = SimpleNamespace(
        inbox=inbox, send=lambda message: None, flush=lambda timeout_s=0.0: None
    )
    main = threading.Thread(
        target=lambda: codes.append(process.run(asleep, messenger)), daemon=True
    )
    with process._ending:
        main.start()
        main.join(0.2)
        assert codes == []
    main.join(60.0)
    assert codes == [EngineExit.OK]
