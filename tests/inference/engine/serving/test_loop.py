"""Outputs are batched before they are sent, the ends of sequences are logged, and ``Shutdown`` does
not end the process before a fault that another thread reports."""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.cache.kv_cache import KVCache
from inference.engine.engine import Engine
from inference.engine.errors import EngineExit
from inference.engine.scheduling.scheduler import EngineLimits, Scheduler
from inference.engine.scheduling.waiting_queue import SchedulerLimits
from inference.engine.serving import process
from inference.engine.serving.loop import (
    SEND_WITHIN_S,
    STATS_INTERVAL_S,
    OutputBatcher,
    logging_ends,
)
from inference.protocol.engine import (
    EngineMessage,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    Shutdown,
    StepOutputs,
    SubmitSequence,
)
from inference.protocol.sampling import SamplingParams
from tests.cases import each_case
from tests.inference.engine.scheduling.fake_device import BLOCK_TOKENS, VOCAB_SIZE, FakeDevice
from tests.inference.reports import engine_stats

FIRST = SequenceStep(sequence_id="s", token_ids=[1], num_cached_tokens=0)
TOKEN = SequenceStep(sequence_id="s", token_ids=[2])
LAST = SequenceStep(sequence_id="s", token_ids=[3], finish_reason="length", num_output_tokens=3)
FAILED = SequenceFailed(sequence_id="s", code="engine_error", message="It broke.")
CANCELLED = SequenceCancelled(sequence_id="s")


def step(*outputs: Any, number: int = 0) -> StepOutputs:
    stats = engine_stats(in_flight=number)
    return StepOutputs(outputs=list(outputs), stats=stats)


class Neuron:
    def __init__(self) -> None:
        self.sent: list[StepOutputs] = []
        self.batcher = OutputBatcher(self.sent.append)
        self.batcher.record_sent(0.0)

    @property
    def sizes(self) -> list[int]:
        return [len(message.outputs) for message in self.sent]


def test_short_steps_are_reported_together_and_no_token_is_held_too_long() -> None:
    neuron, now_s, made_s = Neuron(), 0.0, []
    for _ in range(100):
        now_s += 0.003
        made_s.append(now_s)
        neuron.batcher.add(step(TOKEN), now_s=now_s, next_step_s=0.003)
        held = made_s[sum(neuron.sizes) :]
        assert not held or now_s + 0.003 - held[0] <= SEND_WITHIN_S
    assert set(neuron.sizes) == {6}


def test_long_steps_are_reported_each() -> None:
    neuron = Neuron()
    for number in range(1, 6):
        neuron.batcher.add(step(TOKEN), now_s=0.015 * number, next_step_s=0.015)
    assert neuron.sizes == [1] * 5


@each_case("output", [FIRST, LAST, FAILED, CANCELLED])
def test_what_is_waited_for_is_reported_at_once(output: Any) -> None:
    neuron = Neuron()
    neuron.batcher.add(step(TOKEN), now_s=0.001, next_step_s=0.001)
    assert neuron.sent == []
    neuron.batcher.add(step(TOKEN, output, number=7), now_s=0.002, next_step_s=0.001)
    (message,) = neuron.sent
    assert message == step(TOKEN, TOKEN, output, number=7), "in order, with the newest stats"


def test_what_is_held_can_be_reported() -> None:
    neuron = Neuron()
    neuron.batcher.flush(0.001)
    neuron.batcher.add(step(TOKEN), now_s=0.001, next_step_s=0.001)
    neuron.batcher.flush(0.002)
    neuron.batcher.flush(0.003)
    assert neuron.sizes == [1]


def test_steps_without_tokens_are_reported_now_and_then() -> None:
    neuron = Neuron()
    for number in range(1, 31):
        neuron.batcher.add(step(number=number), now_s=0.1 * number, next_step_s=0.1)
    assert [message.stats.in_flight for message in neuron.sent] == [10, 20, 30]
    assert neuron.batcher.is_quiet(3.0 + STATS_INTERVAL_S)
    neuron.batcher.record_sent(3.5)
    assert not neuron.batcher.is_quiet(3.0 + STATS_INTERVAL_S)


@given(st.lists(st.tuples(st.sampled_from([FIRST, TOKEN, LAST, None]), st.floats(0, 0.05))))
def test_nothing_is_lost_or_moved(steps: Any) -> None:
    neuron, now_s = Neuron(), 0.0
    for output, step_s in steps:
        now_s += step_s
        outputs = [] if output is None else [output]
        neuron.batcher.add(step(*outputs), now_s=now_s, next_step_s=step_s)
    neuron.batcher.flush(now_s)
    assert [o for message in neuron.sent for o in message.outputs] == [o for o, _ in steps if o]


def test_an_engine_reports_when_prompts_make_its_steps_long() -> None:
    scheduler = Scheduler(KVCache(40, BLOCK_TOKENS), SchedulerLimits(prefill_tokens_per_step=4))
    engine = Engine(FakeDevice(), scheduler, EngineLimits(context_tokens=40, vocab_size=VOCAB_SIZE))
    reported = [engine.has_prompts]
    params = SamplingParams(max_tokens=3, temperature=0.0)
    engine.submit(SubmitSequence(sequence_id="s", token_ids=[0] * 6, params=params))
    while engine.has_work:
        reported.append(engine.has_prompts)
        engine.step()
    assert reported == [False, True, True, False, False]


STATS = engine_stats(in_flight=1, kv_blocks_used=3)
TIMING = SequenceTiming(queue_ms=12.0, prefill_ms=100.0, decode_ms=500.0, prefill_tokens=50)


def test_a_line_for_each_end_and_none_for_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sent: list[EngineMessage] = []
    outputs = StepOutputs(
        outputs=[
            SequenceStep(sequence_id="runs/0", token_ids=[7]),
            SequenceStep(
                sequence_id="ends/0",
                token_ids=[8],
                finish_reason="length",
                num_output_tokens=11,
                timing=TIMING,
            ),
            SequenceFailed(
                sequence_id="bad/0", code="numerical_error", message="3 logits are not finite"
            ),
        ],
        stats=STATS,
    )
    logging_ends(sent.append)(outputs)
    (message,) = sent
    assert isinstance(message, StepOutputs) and message.stats == STATS
    assert [message.outputs[0], message.outputs[2]] == [outputs.outputs[0], outputs.outputs[2]]
    ended = message.outputs[1]
    assert isinstance(ended, SequenceStep) and ended.timing is not None
    assert ended.timing.memory_bytes > 1_000_000
    finished, failed = caplog.records
    assert (finished.levelname, failed.levelname) == ("INFO", "WARNING")
    words = finished.getMessage().split()
    assert words[:3] == ["ends/0", "length", "completion=11"]
    assert {"queue_ms=12", "prefill_ms=100", "prefill_tokens=50", "decode_ms=500"} <= {*words}
    assert {"prefill_tokens_per_s=500", "decode_tokens_per_s=20.0", "kv_blocks=3/64"} <= {*words}
    assert f"memory_bytes={ended.timing.memory_bytes}" in words
    assert failed.getMessage() == "bad/0 numerical_error: 3 logits are not finite"


NEVER_S = 0.2
GIVE_UP_S = 60.0


class Asleep:
    engine = None
    has_work = False

    def close(self) -> None:
        pass


class ToldToStop:
    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.inbox.put(Shutdown())

    def send(self, message: object) -> None:
        pass

    def flush(self, timeout_s: float = 0.0) -> None:
        pass


def test_a_fault_that_another_thread_reports_wins() -> None:
    codes: list[EngineExit] = []

    def run() -> None:
        served, messenger = cast(Any, Asleep()), cast(Any, ToldToStop())
        codes.append(process.run(served, messenger))

    main = threading.Thread(target=run, daemon=True)
    with process._ending:
        main.start()
        main.join(NEVER_S)
        assert codes == []
    main.join(GIVE_UP_S)
    assert codes == [EngineExit.OK]
