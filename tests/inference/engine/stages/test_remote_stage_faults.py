"""A stage of another neuron that dies, stands still or cannot be reached ends the model once and in
time, and leaves nothing behind; so does an engine that is gone, on the stage's host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import psutil
import pytest

from inference.channel import Channel
from inference.engine.children import encode
from inference.engine.errors import EngineExit
from inference.engine.stages.messages import BuildStage, MeetStage
from inference.engine.stages.stage_specs import files_digest
from inference.loading.loader import OpenedModel
from inference.protocol.engine import (
    EngineFaulted,
    Loaded,
    LoadFailedMessage,
    SequenceStep,
    Shutdown,
    StageReady,
    StageReleased,
    StepOutputs,
)
from inference.protocol.load import LoadSpec
from inference.stage_links.addresses import address_of
from inference.stage_links.dialling import dial
from inference.stage_links.identities import new_identity
from tests.inference.engine.serving.test_process import EXIT_TIMEOUT_S, EngineProcess
from tests.inference.engine.stages.remote_stages import (
    HERE,
    LISTEN,
    RemoteStages,
    last_messages,
    listening_of,
    remote_stages,
    started_process,
)

pytestmark = pytest.mark.slow

LONG = 200
PATIENT = {"HELEXA_STEP_TIMEOUT_S": "600"}
"""The watchdog of steps notices nothing here."""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    directory = tmp_path_factory.mktemp("remote-faults")
    (directory / "cache").mkdir()
    (directory / "cache" / "native").symlink_to(native_cache_dir)
    return directory


@contextmanager
def served(
    model_dir: Path, data_dir: Path, *neurons: str
) -> Iterator[tuple[EngineProcess, RemoteStages]]:
    """A loaded engine process, and the stages of other neurons that it has."""
    ends = [*range(1, len(neurons)), 3]
    with (
        remote_stages(model_dir, data_dir, neurons, *ends) as there,
        started_process(there.spec, data_dir, PATIENT) as engine,
    ):
        loaded = engine.wait_loaded()
        assert isinstance(loaded, Loaded), loaded
        yield engine, there


def failure_of(spec: LoadSpec, data_dir: Path) -> LoadFailedMessage:
    with started_process(spec, data_dir, PATIENT | LISTEN) as process:
        failed = next(m for m in process.messages() if isinstance(m, LoadFailedMessage))
        assert process.process.wait(EXIT_TIMEOUT_S) == EngineExit.FAILED
        return failed


def begin(engine: EngineProcess) -> None:
    """A long answer, under way."""
    engine.submit("long", LONG)
    for message in engine.messages():
        if isinstance(message, StepOutputs) and message.outputs:
            assert isinstance(message.outputs[0], SequenceStep)
            return


def ended_by(engine: EngineProcess) -> EngineFaulted:
    return next(m for m in engine.messages() if isinstance(m, EngineFaulted))


@pytest.mark.parametrize(("index", "is_busy"), [(0, True), (1, False)])
def test_a_stage_that_dies_ends_the_model_at_once(
    tiny_model_dir: Path, data_dir: Path, index: int, is_busy: bool
) -> None:
    with served(tiny_model_dir, data_dir, HERE, "b", "c") as (engine, there):
        if is_busy:
            begin(engine)
        there.stages[index].process.kill()
        assert ended_by(engine).code == "device_fault"
        assert engine.process.wait(EXIT_TIMEOUT_S) == EngineExit.DEVICE_FAULT
        other = there.stages[1 - index]
        assert isinstance(last_messages(other)[-1], StageReleased)
        assert other.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK


def test_a_stage_that_stands_still_is_noticed(tiny_model_dir: Path, data_dir: Path) -> None:
    with served(tiny_model_dir, data_dir, HERE, "b") as (engine, there):
        begin(engine)
        stage = psutil.Process(there.stages[0].process.pid)
        stage.suspend()
        ended_by(engine)
        assert engine.process.wait(EXIT_TIMEOUT_S) in (EngineExit.HUNG, EngineExit.DEVICE_FAULT)
        stage.resume()
        assert isinstance(last_messages(there.stages[0])[-1], StageReleased)


def test_a_stage_ends_with_its_engine(tiny_model_dir: Path, data_dir: Path) -> None:
    with served(tiny_model_dir, data_dir, HERE, "b", HERE) as (engine, there):
        begin(engine)
        local = psutil.Process(engine.process.pid).children()
        engine.process.kill()
        assert isinstance(last_messages(there.stages[0])[-1], StageReleased)
        assert there.stages[0].process.wait(EXIT_TIMEOUT_S) == EngineExit.OK
        psutil.wait_procs(local, timeout=EXIT_TIMEOUT_S)
        assert not any(one.is_running() for one in local)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_stage_ends_with_its_neuron(tiny_model_dir: Path, data_dir: Path, is_asked: bool) -> None:
    with served(tiny_model_dir, data_dir, HERE, "b") as (engine, there):
        begin(engine)
        (stage,) = there.stages
        if is_asked:
            stage.send(Shutdown())
        else:
            stage.connection.close()
        expected = EngineExit.OK if is_asked else EngineExit.ORPHANED
        assert stage.process.wait(EXIT_TIMEOUT_S) == expected
        assert ended_by(engine).code == "device_fault"


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
            ours, _ = self._listener.accept()
            theirs = socket.create_connection(self._to)
            self.pairs.append((ours, theirs))
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_two_other_hosts_that_lose_each_other(tiny_model_dir: Path, data_dir: Path) -> None:
    """The engine reaches both and sees nothing of it but what they report."""
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b", "c"], 1, 2, 3) as there:
        stages = list(there.spec.stages)
        proxy = Proxy(stages[2].address)
        stages[2] = msgspec.structs.replace(stages[2], address=proxy.address)
        spec = msgspec.structs.replace(there.spec, stages=stages)
        with started_process(spec, data_dir, PATIENT) as engine:
            loaded = engine.wait_loaded()
            assert isinstance(loaded, Loaded), loaded
            proxy.cut(1)  # control came first, then rows, then rows back
            assert ended_by(engine).code == "device_fault"
            assert all(isinstance(last_messages(one)[-1], StageReleased) for one in there.stages)


def test_no_engine_comes(tiny_model_dir: Path, data_dir: Path) -> None:
    soon = (
        "import sys; from inference.engine.stages import remote_stage; "
        "remote_stage.ENGINE_TIMEOUT_S = 1.0; "
        "from inference.engine.serving.process import main; sys.exit(main())"
    )
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3) as there:
        order = there.order(1)
    with started_process(order, data_dir, LISTEN, ["-c", soon]) as stage:
        host, port = address_of(listening_of(stage).address)
        (released,) = last_messages(stage)
        assert isinstance(released, StageReleased) and "no engine came" in released.reason
        assert stage.process.wait(EXIT_TIMEOUT_S) == EngineExit.OK
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, port))


def test_neighbours_that_never_come_fail_the_stage(tiny_model_dir: Path, data_dir: Path) -> None:
    """An engine that has the stage built, and made no links for its rows before: it holds the
    control link, so nothing else would end the stage."""
    soon = (
        "import sys; from inference.engine.stages import remote_stage; "
        "remote_stage.LINKS_TIMEOUT_S = 0.1; "
        "from inference.engine.serving.process import main; sys.exit(main())"
    )
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3) as there:
        order, engine, stage = there.order(1), there.engine, there.stage[1]
    files = SimpleNamespace(weight_paths=[tiny_model_dir / "model.safetensors"], projector=None)
    with started_process(order, data_dir, LISTEN, ["-c", soon]) as process:
        address = address_of(listening_of(process).address)
        control = dial(
            address, engine, stage.certificate, "control", timeout_s=60, stall_timeout_s=60
        )
        channel = Channel(control)
        channel.send(encode(MeetStage(files_digest=files_digest(cast("OpenedModel", files)))))
        channel.send(encode(BuildStage(context_tokens=64, has_images=False)))
        failed = last_messages(process)[-1]
        assert isinstance(failed, LoadFailedMessage), failed
        assert failed.failure.code == "stage_unreachable"
        assert "links for rows of stage 2 of 2" in failed.failure.message
        assert process.process.wait(EXIT_TIMEOUT_S) == EngineExit.FAILED
        control.close()


def test_ports_are_those_that_the_operator_named(tiny_model_dir: Path, data_dir: Path) -> None:
    """The next one where the first is taken; a failure where all are, or none is named."""
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3) as there:
        order = there.order(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for listen, problem in (("", "HELEXA_STAGE_LISTEN"), (f"127.0.0.1:{port}", "is free")):
            with started_process(order, data_dir, {"HELEXA_STAGE_LISTEN": listen}) as stage:
                (failed,) = last_messages(stage)
            assert isinstance(failed, LoadFailedMessage) and problem in failed.failure.message
        several = {"HELEXA_STAGE_LISTEN": f"127.0.0.1:{port}-{port + 20}"}
        with started_process(order, data_dir, several) as stage:
            _, found = address_of(listening_of(stage).address)
        assert port < found <= port + 20


def test_files_that_are_not_the_engines_are_refused(
    tiny_model_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    """A stage that computed with others would answer, and wrongly."""
    other = tmp_path / "other"
    other.mkdir()
    for path in tiny_model_dir.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3) as there:
        changed = msgspec.structs.replace(there.spec, source=f"path:{other}")
        failure = failure_of(changed, data_dir).failure
        assert failure.code == "bad_file" and "other files" in failure.message
        failed = there.message(LoadFailedMessage)
        assert isinstance(failed, LoadFailedMessage) and failed.failure == failure


def test_a_stage_that_is_another_is_refused(tiny_model_dir: Path, data_dir: Path) -> None:
    """Its certificate is not the one that the load names; it waits for its own engine."""
    with remote_stages(tiny_model_dir, data_dir, [HERE, "b"], 1, 3) as there:
        stages = list(there.spec.stages)
        stages[1] = msgspec.structs.replace(stages[1], certificate=new_identity().certificate)
        spec = msgspec.structs.replace(there.spec, stages=stages)
        assert failure_of(spec, data_dir).failure.code == "stage_unreachable"
        strange = msgspec.structs.replace(there.spec, link_identity=new_identity())
        assert failure_of(strange, data_dir).failure.code == "stage_unreachable"
        with started_process(there.spec, data_dir, PATIENT) as engine:
            assert isinstance(engine.wait_loaded(), Loaded)
            assert isinstance(there.message(StageReady), StageReady)
