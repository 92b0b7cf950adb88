"""An engine's process: taken by the first load, its standard error kept, bounded and reported; and
the replica that it serves, which may wake."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

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


def test_lines_are_bounded_in_bytes_and_models_and_hide_keys(
    monkeypatch: pytest.MonkeyPatch, redis_db: Any, capfd: Any
) -> None:
    """A reload starts another engine, which does not hide why the first one ended."""
    monkeypatch.setattr(engine_process, "MAX_MODEL_BYTES", 35)
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
    logs.writer("tiny")(b"Authorization: Bearer abcdefgh\xff\n")
    for ask, model, lines in (("1", "tiny", ["Authorization: Bearer ***"]), ("2", "nobody", [])):
        logs.send(ask, model, 1)
        key = engine_log_key("n1", ask)
        assert 0 < redis_db.ttl(key) <= 30
        answer = decode_engine_log(redis_db.lpop(key))
        assert (answer.lines, answer.is_known) == (lines, bool(lines))


ENGINE = r"""
import socket, sys
connection = socket.socket(fileno=int(sys.argv[2]))
print(len(connection.recv(4)), file=sys.stderr, flush=True)
"""


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_the_first_load_takes_the_engine_that_is_started_ahead() -> None:
    """Unless it has ended. One that no load takes is ended."""
    now_s, lines = 0.0, list[bytes]()
    command = [sys.executable, "-c", ENGINE]
    starts = EngineStarts(command, lambda _: lines.append, clock=lambda: now_s)

    def ahead() -> int:
        before = children()
        starts.start_ahead()
        (pid,) = children() - before
        return pid

    def load() -> int:
        """The process id of its engine, which has read its spec."""
        engine = starts.start(spec_of())
        list(engine.messages())
        engine.reap()
        return engine.pid

    pid = ahead()
    assert load() == pid != load()
    assert lines == [b"4\n", b"4\n"]
    os.kill(pid := ahead(), signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert load() != pid
    before, pid = children(), ahead()
    starts.tick()
    assert children() - before == {pid}
    now_s = AHEAD_LIMIT_S
    starts.tick()
    assert children() == before
    starts.close()


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

    context: Any = SimpleNamespace(
        admission=SimpleNamespace(readmit=readmit),
        loads=SimpleNamespace(wake=lambda: None),
        clock=lambda: 0.0,
        load_stall_limit_s=None,
        on_change=on_change,
    )
    replica = Replica(spec_of("first"), context)
    replica._engine, replica.status = SimpleNamespace(send=send), ReplicaStatus.ASLEEP  # type: ignore[assignment]
    replica.wake(spec_of("first"))
    assert woken.wait(WAIT_S)
    assert (jobs, replica.status) == (["first", "second"], ReplicaStatus.LOADING)
