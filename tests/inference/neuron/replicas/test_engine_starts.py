"""An engine's process is started ahead of its load, once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import psutil
import pytest

from inference.neuron.replicas.engine_process import AHEAD_LIMIT_S, EngineStarts
from inference.protocol.load import LoadSpec

SPEC = LoadSpec(job_id="j", model="tiny", source="pypi:tiny")
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
    before = children()
    started.starts.start_ahead()
    (ahead,) = children() - before
    assert started.start() == ahead
    assert started.start() != ahead
    assert started.lines == [b"4\n", b"4\n"]


def test_one_that_has_ended_is_not_taken(started: Starts) -> None:
    before = children()
    started.starts.start_ahead()
    (ahead,) = children() - before
    os.kill(ahead, signal.SIGKILL)
    os.waitid(os.P_PID, ahead, os.WEXITED | os.WNOWAIT)
    assert started.start() != ahead


def test_one_that_no_load_takes_is_ended(started: Starts) -> None:
    before = children()
    started.starts.start_ahead()
    started.starts.tick()
    assert children() - before
    started.now_s = AHEAD_LIMIT_S
    started.starts.tick()
    assert children() == before
