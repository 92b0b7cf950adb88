"""Stages of other neurons as processes of this host, over loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inference.protocol.engine import EngineMessage, StageAlive, StageListening
from inference.protocol.load import LinkIdentity, LoadSpec, StageOf, StageSpec
from inference.stage_links.identities import new_identity
from tests.inference.engine.serving.test_process import (
    EXIT_TIMEOUT_S,
    REPOSITORY_DIR,
    EngineProcess,
)
from tests.inference.engine.stages.loads import spec_of

HERE = ""
"""The neuron of stages beside the engine."""
LISTEN = {"HELEXA_STAGE_LISTEN": "127.0.0.1"}


@dataclass(frozen=True)
class RemoteStages:
    spec: LoadSpec
    """The engine's."""
    stages: list[EngineProcess]
    """The neuron's end of each stage of another neuron, in order."""
    engine: LinkIdentity
    stage: Mapping[int, LinkIdentity]

    def order(self, index: int) -> LoadSpec:
        """The stage's own."""
        return order_of(self.spec, self.spec.stages, index, self.engine, self.stage[index])

    def message(self, kind: type[msgspec.Struct], index: int = 0) -> msgspec.Struct:
        """The next message of this kind that the stage sends its neuron."""
        return next(m for m in self.stages[index].messages() if isinstance(m, kind))


@contextmanager
def remote_stages(
    source: Path,
    data_dir: Path,
    neurons: Sequence[str],
    *ends: int,
    environment: Mapping[str, str] = LISTEN,
    **changes: object,
) -> Iterator[RemoteStages]:
    """Starts the stages whose neuron is not ``HERE``, in order, and gives the engine's spec with
    their addresses. ``ends``: of each stage's layers."""
    spec = spec_of(source, *ends, **changes)
    engine = new_identity()
    identities = {index: new_identity() for index, one in enumerate(neurons) if one != HERE}
    stages = [
        msgspec.structs.replace(
            stage,
            neuron=neuron,
            certificate=identities[index].certificate if neuron else "",
        )
        for index, (stage, neuron) in enumerate(zip(spec.stages, neurons, strict=True))
    ]
    with ExitStack() as running:
        found, addressed = [], list(stages)
        for index, identity in identities.items():
            order = order_of(spec, stages, index, engine, identity)
            process = running.enter_context(started_process(order, data_dir, environment))
            found.append(process)
        for index, process in zip(identities, found, strict=True):
            listening = listening_of(process)
            addressed[index] = msgspec.structs.replace(stages[index], address=listening.address)
        load = msgspec.structs.replace(spec, stages=addressed, link_identity=engine)
        yield RemoteStages(load, found, engine, identities)


def order_of(
    spec: LoadSpec,
    stages: list[StageSpec],
    index: int,
    engine: LinkIdentity,
    identity: LinkIdentity,
) -> LoadSpec:
    stage_of = StageOf(
        index=index, engine_neuron="the engine's", engine_certificate=engine.certificate
    )
    return msgspec.structs.replace(spec, stages=stages, stage_of=stage_of, link_identity=identity)


def listening_of(process: EngineProcess) -> StageListening:
    message = next(iter(process.messages()))
    assert isinstance(message, StageListening), message
    return message


@contextmanager
def started_process(
    spec: LoadSpec,
    data_dir: Path,
    environment: Mapping[str, str],
    command: Sequence[str] = ("-m", "inference.engine"),
) -> Iterator[EngineProcess]:
    """An engine, or a stage of another neuron's."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, *command, "--fd", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=REPOSITORY_DIR,
        env=os.environ
        | {"HELEXA_DATA_DIR": str(data_dir), "HELEXA_ENGINE_THREADS": "1"}
        | dict(environment),
    )
    theirs.close()
    stage = EngineProcess(process, ours)
    stage.channel.send(msgspec.msgpack.encode(spec))
    try:
        yield stage
    finally:
        ours.close()
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(EXIT_TIMEOUT_S)


def last_messages(stage: EngineProcess) -> list[EngineMessage]:
    """All that it still sends until it ends, without its reports that it is alive: a last one may
    come behind."""
    found = []
    try:
        for message in stage.messages():
            if not isinstance(message, StageAlive):
                found.append(message)
    except Exception:  # noqa: BLE001 -- the end of file
        pass
    return found
