"""Engines' standard error is kept, bounded and reported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import redis

from inference.neuron.replicas import engine_process
from inference.neuron.replicas.engine_process import (
    AHEAD_LIMIT_S,
    EngineLogs,
    EngineProcess,
    EngineStarts,
)
from inference.protocol.engine_logs import decode_engine_log
from inference.protocol.keys import engine_log_key
from inference.protocol.load import LoadSpec

SPEC = LoadSpec(job_id="j", model="tiny", source="pypi:tiny")
WRITES = r"""
import sys
sys.stderr.write("first\nlast line without an end")
sys.stderr.flush()
"""


def test_the_last_words_of_an_engine_are_there_once_it_is_reaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "LAST_LINES_S", 60.0)
    lines: list[bytes] = []
    engine = EngineProcess(SPEC, [sys.executable, "-c", WRITES], on_line=lines.append)
    list(engine.messages())
    engine.reap()
    assert lines == [b"first\n", b"last line without an end"]


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
    logs.send("ask-1", "tiny", 10)
    logs.send("ask-2", "nobody", 10)
    answers = [
        decode_engine_log(redis_db.lpop(engine_log_key("n1", ask)))  # type: ignore[arg-type]
        for ask in ("ask-1", "ask-2")
    ]
    assert answers[0].lines == ["Authorization: Bearer ***"]
    assert [answer.is_known for answer in answers] == [True, False]
    logs.send("ask-3", "tiny", 10)
    assert 0 < redis_db.ttl(engine_log_key("n1", "ask-3")) <= 30  # type: ignore[operator]


ENGINE = r"""
import socket, sys
connection = socket.socket(fileno=int(sys.argv[2]))
print(len(connection.recv(4)), file=sys.stderr, flush=True)
"""


class Starts:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[bytes] = []
        self.starts = EngineStarts(
            [sys.executable, "-c", ENGINE], lambda _: self.lines.append, clock=lambda: self.now_s
        )
        self.before = children()
        self.starts.start_ahead()
        (self.ahead,) = children() - self.before

    def start(self) -> int:
        """The process id of the engine of a load, once it has read its spec."""
        engine = self.starts.start(SPEC)
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
