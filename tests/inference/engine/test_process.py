"""The engine process from the neuron's end of the socket, also where its steps break on purpose.
Outputs are batched before they are sent, the ends of sequences are logged, and ``Shutdown`` does
not end the process before a fault that another thread reports."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.channel import Channel
from inference.engine import loop, process
from inference.engine.errors import DeviceFault, EngineExit, HangFault
from inference.protocol.engine import (
    CancelSequence,
    EngineFaulted,
    EngineMessage,
    Grammar,
    Idle,
    Loaded,
    LoadFailedMessage,
    SamplingParams,
    SequenceCancelled,
    SequenceFailed,
    SequenceStep,
    SequenceTiming,
    Shutdown,
    StepOutputs,
    SubmitSequence,
    decode_engine_message,
    encode_engine_frame,
)
from inference.protocol.load import LoadSpec
from inference.settings.neuron import STEP_TIMEOUT_S
from tests.inference.engine.test_run_ahead import Client
from tests.inference.reports import engine_stats

REPOSITORY_DIR = Path(__file__).resolve().parents[3]
EXIT_TIMEOUT_S = 120
KV_MEMORY_BYTES = 4 * 1024**2


class EngineProcess:
    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process = process
        self.connection = connection
        self.channel = Channel(connection)

    def send(self, command: msgspec.Struct) -> None:
        self.channel.send(encode_engine_frame(command))

    def submit(
        self, sequence_id: str, max_tokens: int, grammar: Grammar | None = None, first: int = 1
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, grammar=grammar)
        self.send(SubmitSequence(sequence_id=sequence_id, token_ids=[first, 2, 3], params=params))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It finds together the commands that are sent meanwhile, whatever pauses here."""
        self.process.send_signal(signal.SIGSTOP)
        yield
        self.process.send_signal(signal.SIGCONT)

    def messages(self) -> Iterator[EngineMessage]:
        while True:
            yield decode_engine_message(self.channel.receive())

    def next(self, kind: Any) -> Any:
        return next(message for message in self.messages() if isinstance(message, kind))

    def outputs(self, sequence_id: str) -> list[Any]:
        """The sequence's, up to the one that ends it."""
        outputs = []
        while True:
            for output in self.next(StepOutputs).outputs:
                if output.sequence_id != sequence_id:
                    continue
                outputs.append(output)
                if not isinstance(output, SequenceStep) or output.finish_reason is not None:
                    return outputs


@contextmanager
def started(
    source: str | LoadSpec,
    data_dir: Path,
    *,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> Iterator[EngineProcess]:
    if isinstance(source, str):
        settings = {"kv_memory_bytes": KV_MEMORY_BYTES} | settings
        source = LoadSpec(job_id="1", model="tiny", source=source, **settings)
    ours, theirs = socket.socketpair()
    own = {"HELEXA_DATA_DIR": str(data_dir), "HELEXA_ENGINE_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "inference.engine", "--fd", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=REPOSITORY_DIR,
        env=os.environ | own | {"HELEXA_ENGINE_CHECKS": "1"} | dict(environment or {}),
    )
    theirs.close()
    engine = EngineProcess(process, ours)
    engine.channel.send(msgspec.msgpack.encode(source))
    try:
        yield engine
    finally:
        ours.close()
        process.kill()
        process.wait(EXIT_TIMEOUT_S)


@pytest.mark.slow
def test_loads_answers_cancels_and_shuts_down(tiny_model_dir: Path, data_dir: Path) -> None:
    with started(f"path:{tiny_model_dir}", data_dir) as engine:
        report = engine.next(Loaded | LoadFailedMessage).report
        assert report.context_tokens == 256
        assert report.kv_bytes <= KV_MEMORY_BYTES
        assert report.grammar_problem is None

        engine.process.send_signal(signal.SIGINT)  # Ctrl-C in the terminal is not for the engine
        grammar = Grammar(text='{"grammars": [{"lark_grammar": "start: /[ab]{3}/"}]}')
        for bound, expected in ((None, ("length", 50)), (grammar, ("stop", 3))):
            engine.submit("answered", 50, bound)
            end = engine.outputs("answered")[-1]
            assert (end.finish_reason, end.num_output_tokens) == expected

        with engine.stopped():
            engine.submit("cancelled", 200)
            engine.send(CancelSequence(sequence_id="cancelled"))
        assert isinstance(engine.outputs("cancelled")[-1], SequenceCancelled)
        assert engine.next(Idle).stats.kv_blocks_used == 0

        with engine.stopped():
            engine.submit("unfinished", 200)
            engine.send(Shutdown())
        *steps, unfinished = engine.outputs("unfinished")
        assert isinstance(unfinished, SequenceCancelled)
        num_sent = sum(len(step.token_ids) for step in steps if isinstance(step, SequenceStep))
        assert unfinished.used.num_output_tokens == num_sent
        assert unfinished.used.num_prompt_tokens == (3 if num_sent else 0)
        assert engine.process.wait(EXIT_TIMEOUT_S) == 0
    with started(f"path:{tiny_model_dir / 'nothing-here'}", data_dir) as engine:
        assert engine.next(LoadFailedMessage).failure.code in {"missing_file", "bad_source"}
        assert engine.process.wait(EXIT_TIMEOUT_S) == 1
    with started(f"path:{tiny_model_dir}", data_dir) as engine:
        engine.connection.close()  # while it is still importing or loading
        assert engine.process.wait(EXIT_TIMEOUT_S) == 2


def test_what_it_cannot_survive_ends_it_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "_exit", Mock(side_effect=SystemExit))
    for fault, exit_code in (
        (DeviceFault("an illegal memory access"), EngineExit.DEVICE_FAULT),
        (HangFault("a collective timed out"), EngineExit.HUNG),
    ):
        monkeypatch.setattr(process, "_ending", threading.Lock())
        sent: list[Any] = []
        messenger: Any = SimpleNamespace(inbox=queue.SimpleQueue(), send=sent.append)
        messenger.flush = lambda timeout_s=0.0: None
        engine = Mock(has_work=True, has_outputs=False, has_prompts=False)
        engine.step.side_effect = fault
        served: Any = SimpleNamespace(engine=engine, has_work=True)
        with pytest.raises(SystemExit):
            process.run(served, messenger)
        os._exit.assert_called_with(exit_code)  # type: ignore[attr-defined]
        assert sent == [EngineFaulted(code=fault.code, message=fault.client_message)]
        named = "test_process.py" in capfd.readouterr().err
        assert named == (exit_code is EngineExit.HUNG), "the log names the place"


def test_the_timeout_is_the_operators() -> None:
    for word, seconds in (("", 120.0), ("7.5", 7.5), ("0", None)):
        assert (STEP_TIMEOUT_S.read({"HELEXA_STEP_TIMEOUT_S": word}) or None) == seconds
    watchdog = loop.StepWatchdog(None, lambda fault: pytest.fail("it watched"))
    watchdog.start()
    with watchdog.step():
        pass
    found: queue.SimpleQueue[HangFault] = queue.SimpleQueue()
    watchdog = loop.StepWatchdog(0.01, found.put)
    watchdog.start()
    with watchdog.step():
        assert str(found.get(timeout=60)) == "a step has not ended after 0.01 s"


FIRST = SequenceStep(sequence_id="s", token_ids=[1], num_cached_tokens=0)
TOKEN = SequenceStep(sequence_id="s", token_ids=[2])
LAST = SequenceStep(sequence_id="s", token_ids=[3], finish_reason="length", num_output_tokens=3)
FAILED = SequenceFailed(sequence_id="s", code="engine_error", message="It broke.")
CANCELLED = SequenceCancelled(sequence_id="s")


def step(*outputs: Any, number: int = 0) -> StepOutputs:
    stats = engine_stats(in_flight=number)
    return StepOutputs(outputs=list(outputs), stats=stats)


class Reported:
    """What a batcher sends."""

    def __init__(self) -> None:
        self.sent: list[StepOutputs] = []
        self.batcher = loop.OutputBatcher(self.sent.append)
        self.batcher.record_sent(0.0)

    @property
    def sizes(self) -> list[int]:
        return [len(message.outputs) for message in self.sent]

    def add(self, now_s: float, next_step_s: float, *outputs: Any, number: int = 0) -> None:
        self.batcher.add(step(*outputs, number=number), now_s=now_s, next_step_s=next_step_s)


def test_short_steps_are_reported_together_and_no_token_is_held_too_long() -> None:
    for step_s, wanted in ((0.003, {6}), (0.015, {1})):
        reported, now_s, made_s = Reported(), 0.0, []
        for _ in range(100):
            now_s += step_s
            made_s.append(now_s)
            reported.add(now_s, step_s, TOKEN)
            held = made_s[sum(reported.sizes) :]
            assert not held or now_s + step_s - held[0] <= loop.SEND_WITHIN_S
        assert set(reported.sizes) == wanted
    for output in (FIRST, LAST, FAILED, CANCELLED, None):  # what is waited for goes at once
        reported = Reported()
        reported.batcher.flush(0.001)
        reported.add(0.001, 0.001, TOKEN)
        assert reported.sent == []
        if output is None:
            reported.batcher.flush(0.002)
            reported.batcher.flush(0.003)
            assert reported.sizes == [1]
            continue
        reported.add(0.002, 0.001, TOKEN, output, number=7)
        # In order, with the newest stats.
        assert reported.sent == [step(TOKEN, TOKEN, output, number=7)]
    reported = Reported()  # steps without tokens are reported now and then
    for number in range(1, 31):
        reported.add(0.1 * number, 0.1, number=number)
    assert [message.stats.in_flight for message in reported.sent] == [10, 20, 30]
    assert reported.batcher.is_quiet(3.0 + loop.STATS_INTERVAL_S)
    reported.batcher.record_sent(3.5)
    assert not reported.batcher.is_quiet(3.0 + loop.STATS_INTERVAL_S)


@given(st.lists(st.tuples(st.sampled_from([FIRST, TOKEN, LAST, None]), st.floats(0, 0.05))))
def test_nothing_is_lost_or_moved(steps: Any) -> None:
    reported, now_s = Reported(), 0.0
    for output, step_s in steps:
        now_s += step_s
        reported.add(now_s, step_s, *[output] * (output is not None))
    reported.batcher.flush(now_s)
    assert [o for message in reported.sent for o in message.outputs] == [o for o, _ in steps if o]


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
    ends = msgspec.structs.replace(LAST, num_output_tokens=11, timing=timing)
    outputs, sent = step(TOKEN, ends, FAILED), list[Any]()
    loop.logging_ends(sent.append)(outputs)
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
    asleep: Any = SimpleNamespace(engine=None, has_work=False, close=lambda: None)
    messenger: Any = SimpleNamespace(inbox=queue.SimpleQueue(), send=lambda message: None)
    messenger.flush = lambda timeout_s=0.0: None
    messenger.inbox.put(Shutdown())
    with ThreadPoolExecutor(1) as pool:
        with process._ending:
            main = pool.submit(process.run, asleep, messenger)
            assert wait([main], timeout=0.2).done == set()
        assert main.result(60) == EngineExit.OK
