"""An engine's process: taken by the first load, its standard error kept, bounded and reported; and
the replica that it serves, which may wake."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import redis

from inference.neuron.errors import LoadRefusedError
from inference.neuron.replicas import engine_process
from inference.neuron.replicas import record as record_module
from inference.neuron.replicas.engine_process import (
    AHEAD_LIMIT_S,
    EngineLogs,
    EngineStarts,
)
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.replicas.replica import Replica
from inference.protocol.engine import Wake
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.keys import engine_log_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.protocol.neuron_tasks import decode_engine_log
from tests.cases import each_case
from tests.inference.reports import engine_stats, load_report

WAIT_S = 30.0


def spec_of(job_id: str = "j") -> LoadSpec:
    return LoadSpec(job_id=job_id, model="m", source="path:/m")


def test_lines_are_bounded_in_bytes_and_models(
    monkeypatch: pytest.MonkeyPatch, redis_db: redis.Redis, capfd: Any
) -> None:
    """A reload starts another engine, which does not hide why the first one ended."""
    monkeypatch.setattr(engine_process, "MAX_MODEL_BYTES", 30)
    monkeypatch.setattr(engine_process, "MAX_MODELS", 2)
    logs = EngineLogs(redis_db, neuron="n1")
    for number in range(5):
        logs.writer("tiny")(b"0123456789%d\n" % number)
    assert logs.lines("tiny", 100) == ["01234567893", "01234567894"]
    assert logs.lines("tiny", 1) == ["01234567894"]
    assert capfd.readouterr().err.count("\n") == 5, "the neuron's own log has them as well"
    logs.writer("huge")
    logs.writer("tiny")(b"x\n")
    logs.writer("other")
    assert (logs.lines("huge", 1), logs.lines("other", 1)) == (None, [])


def test_what_is_reported_hides_keys(redis_db: redis.Redis) -> None:
    logs = EngineLogs(redis_db, neuron="n1")
    logs.writer("tiny")(b"Authorization: Bearer abcdefgh\xff\n")
    answers = []
    for ask, model in (("ask-1", "tiny"), ("ask-2", "nobody")):
        logs.send(ask, model, 10)
        key = engine_log_key("n1", ask)
        assert 0 < redis_db.ttl(key) <= 30  # type: ignore[operator]
        answers.append(decode_engine_log(redis_db.lpop(key)))  # type: ignore[arg-type]
    assert answers[0].lines == ["Authorization: Bearer ***"]
    assert [answer.is_known for answer in answers] == [True, False]


ENGINE = r"""
import socket, sys
connection = socket.socket(fileno=int(sys.argv[2]))
print(len(connection.recv(4)), file=sys.stderr, flush=True)
"""


class Starts:
    """One engine is started ahead of loads."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[bytes] = []
        command = [sys.executable, "-c", ENGINE]
        self.starts = EngineStarts(command, lambda _: self.lines.append, clock=lambda: self.now_s)
        self.before = children()
        self.starts.start_ahead()
        (self.ahead,) = children() - self.before

    def start(self) -> int:
        """The process id of the engine of a load, once it has read its spec."""
        engine = self.starts.start(spec_of())
        list(engine.messages())
        engine.reap()
        return engine.pid


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture
def started() -> Iterator[Starts]:
    one = Starts()
    yield one
    one.starts.close()


def test_the_first_load_takes_it_and_its_lines_are_kept(started: Starts) -> None:
    assert started.start() == started.ahead
    assert started.start() != started.ahead
    assert started.lines == [b"4\n", b"4\n"]


def test_one_that_has_ended_is_not_taken(started: Starts) -> None:
    os.kill(started.ahead, signal.SIGKILL)
    os.waitid(os.P_PID, started.ahead, os.WEXITED | os.WNOWAIT)
    assert started.start() != started.ahead


def test_one_that_no_load_takes_is_ended(started: Starts) -> None:
    started.starts.tick()
    assert children() - started.before
    started.now_s = AHEAD_LIMIT_S
    started.starts.tick()
    assert children() == started.before


def test_a_stage_of_a_load_begins_with_its_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100, 200, 10))
    monkeypatch.setattr(record_module, "time", SimpleNamespace(time=lambda: float(next(now))))
    record = ReplicaRecord(spec_of())  # at 100
    since = []
    for stage, done in (("weights", 0), ("weights", 5), ("warmup", 0), ("warmup", 1)):
        record.progressed(LoadProgress(stage=LoadStage(stage), done=done, total=9))
        since.append(record.state().stage_since_unix_s)
    assert since == [110.0, 110.0, 130.0, 130.0], "its engine was started at 120"


def test_the_report_has_the_engines_warnings_and_drafts_of_lately() -> None:
    record = ReplicaRecord(spec_of())
    report = load_report(warnings=["no C compiler"], speculation="auto: whichever pays")
    text: Any = SimpleNamespace(report=report, capabilities=[])
    record.engine_loaded(text)
    warned = ["prefixes on disk are off"]
    for warnings, speculation in (([], ""), (warned, "none in 100 %"), ([], "")):
        stats = engine_stats(speculation=speculation, warnings=warnings)
        record.reported(stats, worked=bool(warnings))
        found = record.state().report
        assert found is not None
        assert found.warnings == ["no C compiler", *warnings]
        lately = f"; {speculation}" if speculation else ""
        assert found.speculation == f"auto: whichever pays{lately}"


def asleep(
    readmit: Callable[..., bool], send: Callable[..., None], stop: Any = None, **context: Any
) -> Replica:
    """A replica that sleeps, with a load that may let it wake and an engine."""
    made: Any = SimpleNamespace(
        admission=SimpleNamespace(readmit=readmit),
        loads=SimpleNamespace(wake=lambda: None),
        clock=lambda: 0.0,
        load_stall_limit_s=None,
        silence_limit_s=None,
        **context,
    )
    engine: Any = SimpleNamespace(
        send=send, stop=stop, check=lambda _: 0.0, is_stopping=False, silence=None
    )
    replica = Replica(spec_of("first"), made)
    replica._engine, replica.status = engine, ReplicaStatus.ASLEEP
    return replica


@each_case(
    "problem",
    [LoadRefusedError(LoadFailure(code="does_not_fit", message="no room")), ZeroDivisionError()],
    ids=["refused", "broken"],
)
def test_who_asks_as_soon_as_it_is_seen_to_sleep_on_wakes_it(problem: Exception) -> None:
    """A heartbeat reports that it sleeps on, which lets a gateway ask again."""
    woken, jobs, problems = threading.Event(), list[str](), [problem]

    def readmit(*_: Any) -> bool:
        jobs.append(replica.spec.job_id)
        if problems:
            raise problems.pop()
        return True

    def on_change() -> None:
        if replica.status is ReplicaStatus.ASLEEP:
            replica.wake(spec_of("second"))

    def send(command: object) -> None:
        assert isinstance(command, Wake)
        woken.set()

    replica = asleep(readmit, send, on_change=on_change)
    replica.wake(spec_of("first"))
    assert woken.wait(WAIT_S)
    assert (jobs, replica.status) == (["first", "second"], ReplicaStatus.LOADING)


def test_one_that_is_unloaded_as_it_may_wake_ends_once_its_requests_are_done() -> None:
    woken, stopped, submits = threading.Event(), threading.Event(), ["runs"]

    def readmit(*_: Any) -> bool:
        replica.drain()
        return True

    table = SimpleNamespace(submits_of=lambda _: submits)
    replica = asleep(
        readmit, lambda _: woken.set(), stopped.set, table=table, on_change=lambda: None
    )
    replica.wake(spec_of("first"))
    assert woken.wait(WAIT_S) and not stopped.is_set()
    submits.clear()
    replica.tick()
    assert stopped.is_set()
