"""Loads of models of stages, in the test's process, and what they answer. Stages behind the first
are threads or processes; those of other neurons are over loopback."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from inference.channel import Channel
from inference.engine.divided import children, remote_stage
from inference.engine.divided.children import ParentLink
from inference.engine.divided.remote_stage import hold_stage
from inference.engine.divided.stage_messages import decode_to_stage
from inference.engine.divided.stage_runner import serve
from inference.engine.errors import EngineExit
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.link_identities import new_identity
from inference.protocol.engine import StageAlive, StageListening
from inference.protocol.load import LinkIdentity, LoadSpec, StageOf, StageSpec
from tests.inference.engine.conftest import Answers, cpu_spec, make_data_dir, submit
from tests.inference.engine.test_process import EngineProcess
from tests.inference.engine.test_process import started as start_process

PROMPT = [(7 * n) % 90 + 1 for n in range(100)]
NUM_TOKENS = 12


def spec_of(source: Path, *ends: int, **changes: object) -> LoadSpec:
    """``ends``: of each stage's layers; none: one stage."""
    spec = cpu_spec(
        source,
        kv_memory_bytes=16_000_000,
        stages=[
            StageSpec(device="cpu", layers=bounds) for bounds in zip((0, *ends), ends, strict=False)
        ],
    )
    return msgspec.structs.replace(spec, **changes)


def load(spec: LoadSpec, data_dir: Path) -> LoadedEngine:
    loaded = load_engine(spec, data_dir, lambda _: None, check_when_idle=True)
    loaded_engines.append(loaded)
    return loaded


def close_all() -> None:
    while loaded_engines:
        if (children := loaded_engines.pop().children) is not None:
            children.close()


def answers(loaded: Any, longest_prompt: Sequence[int] = PROMPT) -> tuple[list[int], int]:
    """Two sequences at once, the second of the first one's beginning; then how much of the first
    one's prompt is known when it comes again."""
    engine, found = loaded.engine, Answers()
    for names in (("a", "b"), ("again",)):
        for name in names:
            submit(engine, name, longest_prompt[: 70 if name == "b" else None], NUM_TOKENS)
        found.drain(engine)
    assert found.failed == {} and found.tokens["again"] == found.tokens["a"]
    return found.tokens["a"] + found.tokens["b"], found.cached["again"]


WAIT_S = 20.0
held: list[HeldStage] = []
loaded_engines: list[LoadedEngine] = []


class HeldStage:
    """A stage of another neuron's on a thread, and its neuron's end of it."""

    def __init__(self, order: LoadSpec, data_dir: Path) -> None:
        self._sent: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.code: EngineExit | None = None
        neuron: Any = SimpleNamespace(
            inbox=queue.SimpleQueue(), send=self._sent.put, flush=lambda timeout_s=0.0: None
        )

        def hold() -> None:
            self.code = hold_stage(order, data_dir, neuron)

        self.thread = threading.Thread(target=hold, daemon=True)
        self.thread.start()
        held.append(self)

    def next(self, kind: type[Any]) -> Any:
        while not isinstance(message := self._sent.get(timeout=WAIT_S), kind):
            pass
        return message

    def last(self) -> Any:
        """The last message, once it has ended; without its reports that it is alive."""
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        sent = [self._sent.get() for _ in range(self._sent.qsize())]
        return next((m for m in reversed(sent) if not isinstance(m, StageAlive)), None)


@dataclass(frozen=True)
class RemoteStages:
    spec: LoadSpec
    """The engine's."""
    stages: list[Any]
    """Those of other neurons, in order."""
    engine: LinkIdentity
    orders: dict[int, LoadSpec]


def ordered(source: Path, neurons: Sequence[str], *ends: int, **changes: object) -> RemoteStages:
    """``neurons``: empty for stages beside the engine. ``ends``: of each stage's layers. Nothing is
    started, so that nothing has an address."""
    spec, engine = spec_of(source, *ends, **changes), new_identity()
    identities = {index: new_identity() for index, one in enumerate(neurons) if one}
    stages = list(spec.stages)
    for index, identity in identities.items():
        stages[index] = msgspec.structs.replace(
            stages[index], neuron=neurons[index], certificate=identity.certificate
        )
    load = msgspec.structs.replace(spec, stages=stages, link_identity=engine)
    orders = {}
    for index, identity in identities.items():
        stage_of = StageOf(index=index, engine_neuron="a", engine_certificate=engine.certificate)
        orders[index] = msgspec.structs.replace(load, stage_of=stage_of, link_identity=identity)
    return RemoteStages(load, [], engine, orders)


def with_stage(spec: LoadSpec, index: int, **changes: object) -> LoadSpec:
    stages = list(spec.stages)
    stages[index] = msgspec.structs.replace(stages[index], **changes)
    return msgspec.structs.replace(spec, stages=stages)


def started(
    there: RemoteStages, data_dir: Path, hold: Callable[[LoadSpec, Path], Any] = HeldStage
) -> RemoteStages:
    """Starts the stages of other neurons, and gives the engine their addresses."""
    spec = there.spec
    for index, order in there.orders.items():
        there.stages.append(hold(order, data_dir))
        spec = with_stage(spec, index, address=there.stages[-1].next(StageListening).address)
    return replace(there, spec=spec)


def process_of(spec: LoadSpec, data_dir: Path) -> AbstractContextManager[EngineProcess]:
    """An engine, or a stage of another neuron's. The watchdog of steps notices nothing here."""
    return start_process(spec, data_dir, environment={"HELEXA_STEP_TIMEOUT_S": "600"})


@contextmanager
def processes(there: RemoteStages, data_dir: Path) -> Iterator[RemoteStages]:
    with ExitStack() as running:
        yield started(there, data_dir, lambda *order: running.enter_context(process_of(*order)))


class StageThread:
    """Stands for ``subprocess.Popen``, of which a child uses this much."""

    def __init__(self, module: str, fds: Mapping[str, int]) -> None:
        """Takes what ``inference.engine.divided.children.start_process`` takes."""
        sockets = {name: socket.socket(fileno=os.dup(fd)) for name, fd in fds.items()}
        self._sockets = list(sockets.values())
        engine = ParentLink(Channel(sockets.pop(children.ENGINE_FD)), decode_to_stage, lambda: None)
        self._thread = threading.Thread(target=self._run, args=(engine, sockets), daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> int:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("a stage", timeout_s or 0.0)
        return EngineExit.FAILED

    def kill(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # while another thread may read

    def _run(self, *arguments: Any) -> None:
        try:
            serve(*arguments)
        finally:
            self.kill()


@pytest.fixture(autouse=True)
def _stages_as_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs stages as threads, for loads in the test's process; none is left behind."""
    monkeypatch.setattr(children, "start_process", StageThread)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    monkeypatch.setattr(remote_stage, "forget_secrets", lambda environment: None)
    monkeypatch.setenv("HELEXA_STAGE_LISTEN", "127.0.0.1")
    monkeypatch.setenv("HELEXA_ENGINE_THREADS", "1")
    num_threads = torch.get_num_threads()
    yield
    close_all()
    while held:
        held.pop().last()
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    """Makes a data directory that other tests do not use: a quality figure that is found there is
    not measured again."""
    return make_data_dir(tmp_path_factory, native_cache_dir)
