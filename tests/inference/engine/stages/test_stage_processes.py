"""Stages as processes, of this host and of others: their answers, and the model's end when one of
them dies or stands still. Requests fail once, nothing hangs, and no process stays."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from inference.engine.children import Child
from inference.engine.errors import EngineExit, HangFault, StepFault
from inference.engine.stages import stage_processes
from inference.engine.stages.messages import Alive
from inference.engine.stages.stage_processes import StageProcesses
from inference.protocol.engine import EngineFaulted, Loaded, Shutdown, StageReady, StageReleased
from inference.stage_links.links import address_of
from tests.cases import each_case
from tests.inference.engine.serving.test_process import EXIT_TIMEOUT_S, EngineProcess
from tests.inference.engine.stages.conftest import (
    HERE,
    ordered,
    process_of,
    processes,
    spec_of,
    with_stage,
)
from tests.processes import has_ended


@contextmanager
def three_stages(
    model_dir: Path, data_dir: Path
) -> Iterator[tuple[EngineProcess, psutil.Process, EngineProcess]]:
    """The engine, the process of the second stage, and the neuron's end of another neuron's third
    stage."""
    with (
        processes(ordered(model_dir, [HERE, HERE, "b"], 1, 2, 3), data_dir) as there,
        process_of(there.spec, data_dir) as engine,
    ):
        loaded = engine.wait_loaded()
        assert isinstance(loaded, Loaded)
        assert "3 stages: layers 0 on cpu" in loaded.report.compiled
        (memory,) = loaded.report.stage_memory
        assert memory.process_bytes > 100_000_000, "several processes"
        engine.submit("one", 24)
        assert len(engine.tokens("one")) == 24
        (local,) = psutil.Process(engine.process.pid).children()
        there.stages[0].next(StageReady)
        yield engine, local, there.stages[0]


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["ours", "theirs", "ours stands still"])
def test_a_stage_that_is_lost_ends_the_model(
    tiny_model_dir: Path, data_dir: Path, lost: str
) -> None:
    """At once where it dies, and in time where it stands still and there is no step. The end of the
    engine ends the others."""
    stands = lost == "ours stands still"
    with three_stages(tiny_model_dir, data_dir) as (engine, local, remote):
        if stands:
            local.suspend()
        elif lost == "ours":
            engine.submit("long", 200)
            local.kill()
        else:
            remote.process.kill()
        assert engine.next(EngineFaulted).code == ("engine_hung" if stands else "device_fault")
        expected = EngineExit.HUNG if stands else EngineExit.DEVICE_FAULT
        assert engine.process.wait(EXIT_TIMEOUT_S) == expected
        if lost != "theirs":
            remote.next(StageReleased)
            assert remote.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK
        psutil.wait_procs([local], timeout=EXIT_TIMEOUT_S)
        assert has_ended(local)


@pytest.mark.slow
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_stage_ends_with_its_neuron(tiny_model_dir: Path, data_dir: Path, is_asked: bool) -> None:
    with three_stages(tiny_model_dir, data_dir) as (engine, _, remote):
        engine.submit("long", 200)
        if is_asked:
            remote.send(Shutdown())
        else:
            remote.connection.close()
        expected = EngineExit.OK if is_asked else EngineExit.ORPHANED
        assert remote.process.wait(EXIT_TIMEOUT_S) == expected
        assert engine.next(EngineFaulted).code == "device_fault"


class Proxy:
    """Forwards connections to a stage, and cuts them one by one."""

    def __init__(self, address: str) -> None:
        self._to = address_of(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, index: int) -> None:
        for one in self.pairs[index]:
            one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            pair = self._listener.accept()[0], socket.create_connection(self._to)
            self.pairs.append(pair)
            for ends in (pair, pair[::-1]):
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.mark.slow
def test_two_other_hosts_that_lose_each_other(tiny_model_dir: Path, data_dir: Path) -> None:
    """The engine reaches both and sees nothing of it but what they report."""
    with processes(ordered(tiny_model_dir, [HERE, "b", "c"], 1, 2, 3), data_dir) as there:
        proxy = Proxy(there.spec.stages[2].address)
        spec = with_stage(there.spec, 2, address=proxy.address)
        with process_of(spec, data_dir) as engine:
            assert isinstance(engine.wait_loaded(), Loaded)
            proxy.cut(1)  # control came first, then rows, then rows back
            assert engine.next(EngineFaulted).code == "device_fault"
            for stage in there.stages:
                stage.next(StageReleased)


@each_case("silent_index", [0, 1])
def test_a_stage_that_stands_still_ends_the_model_in_time(
    monkeypatch: pytest.MonkeyPatch, silent_index: int
) -> None:
    """The silent stage sends until the sixtieth second. Until then there are up to four checks
    between two messages, as of processes of a busy host; from then on the other sends always."""
    spec = spec_of(Path("/m"), 1, 2, 3)
    processes, lost, slept_s = StageProcesses(spec), list[StepFault](), list[float]()
    names = [SimpleNamespace(name=f"stage {number}") for number in (2, 3)]
    processes.all = cast("list[Child]", names)

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        for index in (0, 1):
            if index != silent_index if sum(slept_s) > 60 else len(slept_s) % 4 == 0:
                processes._note(index, Alive())

    monkeypatch.setattr(stage_processes, "time", SimpleNamespace(sleep=sleep))
    processes._on_lost = lost.append
    processes._watch_silence()
    (fault,) = lost
    assert isinstance(fault, HangFault)
    assert f"stage {silent_index + 2} has sent nothing" in str(fault)
    assert 0 < sum(slept_s) - 60 < 10
