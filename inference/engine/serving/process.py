"""The engine as a process at the end of a socket: ``python -m inference.engine --fd N``.

    reader thread ──commands──▶ inbox ──▶ engine thread (main) ──▶ outbox ──▶ writer thread
         │ end of file                               │ a step that does not end
         ▼                                           ▼
    os._exit: no engine outlives its neuron       watchdog thread ─▶ os._exit

The first frame is a ``LoadSpec``; then ``EngineCommand`` down and ``EngineMessage`` up. With
``stage_of`` the process holds that stage alone (``stages.remote_stage``). What it serves
(``Served``) is an engine, or a model that sleeps until it is wanted again. What a step
can survive is the engine's business; what it cannot ends the process, in its own way and with its
own code (``EngineExit``), and the neuron starts the next one.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from inference.channel import Channel, ChannelClosedError
from inference.engine.embedding.embedding_engine import EmbeddingEngine
from inference.engine.engine import Engine
from inference.engine.faults.fault_classes import load_failure
from inference.engine.faults.kinds import EngineExit, HangFault, StepFault
from inference.engine.load.load_engine import LoadedEngine, configure_threads, load_engine
from inference.engine.load.sleeper import Sleeper
from inference.engine.serving.messenger import (
    STATS_INTERVAL_S,
    Messenger,
    OutputBatcher,
    logging_ends,
)
from inference.engine.stages.remote_stage import hold_stage
from inference.environment import forget_secrets
from inference.garbage import freeze_heap
from inference.logs.setup import configure_logging
from inference.protocol.engine import (
    Awake,
    CancelSequence,
    DropAdapter,
    EmbedSequences,
    EngineFaulted,
    EngineStats,
    FellAsleep,
    Idle,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
    SequenceFailed,
    Shutdown,
    Sleep,
    StepOutputs,
    SubmitSequence,
    Wake,
)
from inference.protocol.load import LoadSpec
from inference.settings.neuron import ENGINE_CHECKS, STEP_TIMEOUT_S
from inference.settings.storage import DATA_DIR
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

FINAL_MESSAGE_TIMEOUT_S = 2.0
"""How long sending the reason to the neuron may take when the process ends by itself."""
CHECKS_PER_TIMEOUT = 4
MAX_CHECK_INTERVAL_S = 1.0

AnyEngine = Engine | EmbeddingEngine
_ending = threading.Lock()

ASLEEP = EngineStats(
    in_flight=0,
    queue_depth=0,
    kv_blocks_used=0,
    kv_blocks_total=0,
    decode_tokens_per_s=0.0,
    prefill_tokens_per_s=0.0,
    last_forward_unix_s=None,
)
"""The figures of a model without an engine."""


class StepWatchdog:
    """Notices a step that does not come back: a collective whose peer is gone, an endless kernel.

    It works while the stuck call has released the interpreter lock, as torch and the native decoder
    do. Where the lock itself is held nothing runs here any more, and the neuron is the one to
    notice. Loading is not watched, because a download may take any time. ``on_hang`` is called
    once, in the watchdog's thread; ``timeout_s`` ``None``: never."""

    def __init__(self, timeout_s: float | None, on_hang: Callable[[HangFault], object]) -> None:
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._started_s: float | None = None

    def start(self) -> None:
        if self._timeout_s is not None:
            SupervisedThread(partial(self._watch, self._timeout_s), name="step-watchdog").start()

    @contextmanager
    def step(self) -> Iterator[None]:
        self._started_s = time.monotonic()
        try:
            yield
        finally:
            self._started_s = None

    def _watch(self, timeout_s: float) -> None:
        interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S)
        while True:
            time.sleep(interval_s)
            started_s = self._started_s
            if started_s is not None and time.monotonic() - started_s > timeout_s:
                self._on_hang(HangFault(f"a step has not ended after {timeout_s:g} s"))
                return


class Served:
    """The only reference to the engine, so that dropping it here frees the engine."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self.engine: AnyEngine | None = loaded.engine
        self._sleeper: Sleeper | None = loaded.sleeper

    def stats(self) -> EngineStats:
        if self.engine is not None:
            return self.engine.stats()
        warnings = [] if self._sleeper is None else self._sleeper.warnings
        return msgspec.structs.replace(ASLEEP, warnings=warnings)

    @property
    def has_work(self) -> bool:
        return self.engine is not None and self.engine.has_work

    def fall_asleep(self) -> FellAsleep:
        """Requires an engine without work."""
        assert self._sleeper is not None, "the neuron knows by the report what cannot sleep"
        self.close()
        self.engine = None
        return FellAsleep(held=self._sleeper.fall_asleep())

    def wake(self) -> Awake:
        """Does nothing where it is awake."""
        started_s, capture_problem = time.monotonic(), ""
        if self.engine is None:
            assert self._sleeper is not None, "it fell asleep"
            self.engine = self._sleeper.wake()
            capture_problem = self._sleeper.capture_problem
        return Awake(seconds=time.monotonic() - started_s, capture_problem=capture_problem)

    def close(self) -> None:
        if isinstance(self.engine, Engine):
            self.engine.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the neuron")
    options = parser.parse_args(arguments)
    configure_logging("engine")
    # Ctrl-C reaches the whole process group; stopping us in order is the supervisor's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=options.fd))
    try:
        spec = msgspec.msgpack.decode(channel.receive(), type=LoadSpec)
    except ChannelClosedError:
        return EngineExit.ORPHANED
    messenger = Messenger(channel)
    messenger.start()
    if spec.stage_of is not None:
        return hold_stage(spec, _data_dir(), messenger)
    loaded = _load(spec, messenger)
    forget_secrets(os.environ)  # all downloads are done
    if loaded is None:
        messenger.flush()
        return EngineExit.FAILED
    freeze_heap()
    messenger.send(Loaded(report=loaded.report))
    if loaded.children is not None:
        loaded.children.watch(lambda fault: _end_by_fault(fault, messenger))
    served = Served(loaded)
    del loaded  # an engine that sleeps is to be gone
    return run(served, messenger)


def _load(spec: LoadSpec, messenger: Messenger) -> LoadedEngine | None:
    """``None`` when it failed; the failure was sent to the neuron."""
    data_dir = _data_dir()
    try:
        configure_threads()
        return load_engine(
            spec,
            data_dir,
            lambda progress: messenger.send(LoadProgressed(progress=progress)),
            check_when_idle=ENGINE_CHECKS.read(os.environ),
        )
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the neuron is sent it
        failure = load_failure(error, spec.model)
    messenger.send(LoadFailedMessage(failure=failure))
    return None


def _data_dir() -> Path:
    return (DATA_DIR.read(os.environ) or Path("var")).resolve()


def run(served: Served, messenger: Messenger) -> EngineExit:
    """Serves until the neuron sends ``Shutdown``; does not return from a fault."""
    watchdog = StepWatchdog(
        STEP_TIMEOUT_S.read(os.environ) or None, lambda fault: _end_by_fault(fault, messenger)
    )
    watchdog.start()
    try:
        serve(served, messenger, watchdog)
        served.close()
    except StepFault as fault:
        _end_by_fault(fault, messenger)
    except BaseException:  # whatever ended it: outputs that are ready are sent first
        log.exception("the engine broke")
        messenger.flush()
        return EngineExit.FAILED
    with _ending:  # a fault that another thread reports decides the exit code
        messenger.flush()
    return EngineExit.OK


def serve(served: Served, messenger: Messenger, watchdog: StepWatchdog) -> None:
    """The engine thread's loop, until ``Shutdown``. Raises ``StepFault`` where the device is not
    sound."""
    batcher, clock = OutputBatcher(logging_ends(messenger.send)), time.monotonic
    try:
        while _take_commands(served, messenger, batcher):
            if served.engine is not None:
                _work(served.engine, batcher, watchdog)
            if not served.has_work and batcher.is_quiet(clock()):
                messenger.send(Idle(stats=served.stats()))
                batcher.record_sent(clock())
        if served.engine is not None:
            batcher.add(served.engine.cancel_all(), now_s=clock())
    finally:
        batcher.flush(clock())


def _work(engine: AnyEngine, batcher: OutputBatcher, watchdog: StepWatchdog) -> None:
    """One step, where there is anything to do."""
    clock = time.monotonic
    if engine.has_outputs:  # sent before a step, which may be long, and not after it
        batcher.add(engine.take_outputs(), now_s=clock())
    if engine.has_prompts:
        batcher.flush(clock())
    if engine.has_work:
        started_s = clock()
        with watchdog.step():
            outputs = engine.step()
        now_s = clock()
        batcher.add(outputs, now_s=now_s, next_step_s=now_s - started_s)


def _end_by_fault(fault: StepFault, messenger: Messenger) -> NoReturn:
    """Exits at once: the interpreter's own shutdown could wait for the device without limit. The
    first thread exits; others wait for the end."""
    _ending.acquire()
    log.critical("%s, the engine ends: %s", type(fault).__name__, fault)
    if isinstance(fault, HangFault):
        faulthandler.dump_traceback(all_threads=True)
    messenger.send(EngineFaulted(code=fault.code, message=fault.client_message))
    messenger.flush(FINAL_MESSAGE_TIMEOUT_S)
    os._exit(fault.exit_code)


def _take_commands(served: Served, messenger: Messenger, batcher: OutputBatcher) -> bool:
    """Hand over what the neuron sent; wait for it when there is nothing else to do. ``False``
    after ``Shutdown``."""
    timeout_s = 0.0 if served.has_work else STATS_INTERVAL_S
    while True:
        try:
            command = messenger.inbox.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return True
        timeout_s = 0.0
        match command:
            case Shutdown():
                return False
            case Sleep():
                batcher.flush(time.monotonic())
                messenger.send(served.fall_asleep())
            case Wake():
                messenger.send(served.wake())
            case CancelSequence():
                if served.engine is not None:
                    served.engine.cancel(command)
            case DropAdapter(name=name):
                if isinstance(served.engine, Engine):
                    served.engine.drop_adapter(name)
            case _:
                _submit(served, command, messenger)


def _submit(served: Served, command: SubmitSequence | EmbedSequences, messenger: Messenger) -> None:
    match served.engine, command:
        case Engine() as engine, SubmitSequence():
            engine.submit(command)
        case EmbeddingEngine() as embedder, EmbedSequences():
            embedder.submit(command)
        case _:  # the neuron knows what it loaded, and should have refused it
            message = "this engine runs a model of the other kind, or sleeps"
            failed = SequenceFailed(
                sequence_id=command.sequence_id, code="engine_error", message=message
            )
            messenger.send(StepOutputs(outputs=[failed], stats=served.stats()))
