"""Stages of other neurons, over loopback: on threads of the test's process, or as processes."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inference.engine.errors import EngineExit
from inference.engine.stages.remote_stage import hold_stage
from inference.protocol.engine import StageAlive, StageListening
from inference.protocol.load import LinkIdentity, LoadSpec, StageOf
from inference.stage_links.identities import new_identity
from tests.inference.engine.serving.test_process import (
    EXIT_TIMEOUT_S,
    REPOSITORY_DIR,
    EngineProcess,
)
from tests.inference.engine.stages.loads import spec_of

HERE = ""
"""The neuron of stages beside the engine."""
WAIT_S = 20.0
held: list[HeldStage] = []


class HeldStage:
    """A stage on a thread, and its neuron's end of it."""

    def __init__(self, order: LoadSpec, data_dir: Path) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._sent: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.code: EngineExit | None = None
        self.thread = threading.Thread(target=self._hold, args=(order, data_dir), daemon=True)
        self.thread.start()
        held.append(self)

    def send(self, message: object) -> None:
        self._sent.put(message)

    def flush(self, timeout_s: float = 0.0) -> None:
        pass

    def next(self, kind: type[Any]) -> Any:
        while not isinstance(message := self._sent.get(timeout=WAIT_S), kind):
            pass
        return message

    def last(self) -> Any:
        """The last message, once it has ended; without its reports that it is alive."""
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        sent = [self._sent.get() for _ in range(self._sent.qsize())]
        return [message for message in sent if not isinstance(message, StageAlive)][-1]

    def _hold(self, order: LoadSpec, data_dir: Path) -> None:
        self.code = hold_stage(order, data_dir, self)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RemoteStages:
    spec: LoadSpec
    """The engine's."""
    stages: list[Any]
    """Those of other neurons, in order."""
    engine: LinkIdentity
    stage: dict[int, LinkIdentity]
    orders: dict[int, LoadSpec]


def ordered(source: Path, neurons: Sequence[str], *ends: int, **changes: object) -> RemoteStages:
    """``ends``: of each stage's layers. Nothing is started, so that nothing has an address."""
    spec, engine = spec_of(source, *ends, **changes), new_identity()
    identities = {index: new_identity() for index, one in enumerate(neurons) if one != HERE}
    stages = [
        msgspec.structs.replace(
            stage,
            neuron=neuron,
            certificate=identities[index].certificate if neuron else "",
        )
        for index, (stage, neuron) in enumerate(zip(spec.stages, neurons, strict=True))
    ]
    load = msgspec.structs.replace(spec, stages=stages, link_identity=engine)
    orders = {}
    for index, identity in identities.items():
        stage_of = StageOf(index=index, engine_neuron="a", engine_certificate=engine.certificate)
        orders[index] = msgspec.structs.replace(load, stage_of=stage_of, link_identity=identity)
    return RemoteStages(load, [], engine, identities, orders)


def started(
    there: RemoteStages, data_dir: Path, hold: Callable[[LoadSpec, Path], Any] = HeldStage
) -> RemoteStages:
    """Starts the stages whose neuron is not ``HERE``, and gives the engine their addresses."""
    stages = list(there.spec.stages)
    for index, order in there.orders.items():
        there.stages.append(hold(order, data_dir))
        address = there.stages[-1].next(StageListening).address
        stages[index] = msgspec.structs.replace(stages[index], address=address)
    load = msgspec.structs.replace(there.spec, stages=stages)
    return RemoteStages(load, there.stages, there.engine, there.stage, there.orders)


class ProcessOfStage(EngineProcess):
    def next(self, kind: type[Any]) -> Any:
        return next(message for message in self.messages() if isinstance(message, kind))


@contextmanager
def process_of(spec: LoadSpec, data_dir: Path) -> Iterator[ProcessOfStage]:
    """An engine, or a stage of another neuron's."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "inference.engine", "--fd", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=REPOSITORY_DIR,
        env=os.environ
        | {
            "HELEXA_DATA_DIR": str(data_dir),
            "HELEXA_ENGINE_THREADS": "1",
            "HELEXA_STEP_TIMEOUT_S": "600",  # the watchdog of steps notices nothing here
        },
    )
    theirs.close()
    stage = ProcessOfStage(process, ours)
    stage.channel.send(msgspec.msgpack.encode(spec))
    try:
        yield stage
    finally:
        ours.close()
        process.kill()
        process.wait(EXIT_TIMEOUT_S)


@contextmanager
def processes(there: RemoteStages, data_dir: Path) -> Iterator[RemoteStages]:
    with ExitStack() as running:

        def hold(order: LoadSpec, data_dir: Path) -> ProcessOfStage:
            context: AbstractContextManager[ProcessOfStage] = process_of(order, data_dir)
            return running.enter_context(context)

        yield started(there, data_dir, hold)
