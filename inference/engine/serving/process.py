"""The engine as a process at the end of a socket: ``python -m inference.engine --fd N``.

    reader thread ──commands──▶ inbox ──▶ engine thread (main) ──▶ outbox ──▶ writer thread
         │ end of file                               │ a step that does not end
         ▼                                           ▼
    os._exit: no engine outlives its neuron       watchdog thread ─▶ os._exit

The first frame is a ``LoadSpec``; then ``EngineCommand`` down and ``EngineMessage`` up. What a step
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
from pathlib import Path
from typing import NoReturn

import msgspec

from inference.engine.embedding.embedding_engine import EmbeddingEngine
from inference.engine.engine import Engine
from inference.engine.errors import ChannelClosedError, DoesNotFitError
from inference.engine.faults.exit_codes import EngineExit
from inference.engine.faults.fault_classes import classify
from inference.engine.faults.kinds import HangFault, OutOfMemoryFault, StepFault
from inference.engine.load.load_engine import LoadedEngine, configure_threads, load_engine
from inference.engine.serving.channel import Channel
from inference.engine.serving.messenger import Messenger
from inference.engine.serving.output_batcher import STATS_INTERVAL_S, OutputBatcher
from inference.engine.serving.request_log import logging_ends
from inference.engine.serving.served import AnyEngine, Served
from inference.engine.serving.watchdog import StepWatchdog, step_timeout_s
from inference.environment import forget_secrets
from inference.garbage import keep_imports
from inference.loading.sources.disk import is_disk_full
from inference.logs.setup import configure_logging
from inference.models.errors import (
    MissingWeightsError,
    UnfitWeightsError,
    UnknownArchitectureError,
)
from inference.protocol.engine import (
    CancelSequence,
    DropAdapter,
    EmbedSequences,
    EngineFaulted,
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
from inference.protocol.load import LoadFailure, LoadSpec
from inference.protocol.load_errors import LoadError
from inference.settings.neuron import ENGINE_CHECKS
from inference.settings.storage import DATA_DIR

log = logging.getLogger(__name__)

_ending = threading.Lock()

LAST_WORDS_S = 2.0
"""For telling the neuron why, when the process ends by itself."""


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
    loaded = _load(spec, messenger)
    forget_secrets(os.environ)  # what was downloaded is here
    if loaded is None:
        messenger.flush()
        return EngineExit.FAILED
    keep_imports()
    messenger.send(Loaded(report=loaded.report))
    if loaded.followers is not None:
        loaded.followers.watch(lambda fault: _end_by_fault(fault, messenger))
    served = Served(loaded)
    del loaded  # an engine that sleeps is to be gone
    return run(served, messenger)


def _load(spec: LoadSpec, messenger: Messenger) -> LoadedEngine | None:
    """``None`` when it failed; the neuron has been told why."""
    data_dir = (DATA_DIR.read(os.environ) or Path("var")).resolve()
    try:
        configure_threads()
        return load_engine(
            spec,
            data_dir,
            lambda progress: messenger.send(LoadProgressed(progress=progress)),
            check_when_idle=ENGINE_CHECKS.read(os.environ),
        )
    except LoadError as error:
        failure = error.failure
    except DoesNotFitError as error:
        failure = LoadFailure(code="does_not_fit", message=str(error))
    except UnknownArchitectureError as error:
        failure = LoadFailure(code="unknown_architecture", message=str(error))
    except (MissingWeightsError, UnfitWeightsError) as error:
        failure = LoadFailure(code="bad_file", message=str(error))
    except StepFault as fault:
        log.exception("the first steps of %s failed", spec.model)
        message = "the model's first steps failed on its device; the neuron's log says more"
        failure = LoadFailure(code=fault.code, message=message)
    except BaseException as error:
        log.exception("loading %s failed", spec.model)
        failure = _unforeseen(error)
    messenger.send(LoadFailedMessage(failure=failure))
    return None


def _unforeseen(error: BaseException) -> LoadFailure:
    """Whatever was asked for memory and got none: it was free when the load was looked at."""
    if issubclass(classify(error, "cpu"), OutOfMemoryFault):
        message = "the device ran out of memory while the model was loaded"
        return LoadFailure(code="does_not_fit", message=message)
    if is_disk_full(error):
        return LoadFailure(code="disk_full", message=f"the disk was full while loading: {error}")
    message = f"{type(error).__name__} while loading; the neuron's log says more"
    return LoadFailure(code="engine_crashed", message=message)


def run(served: Served, messenger: Messenger) -> EngineExit:
    """Serves until the neuron says that it is enough; does not return from a fault."""
    watchdog = StepWatchdog(
        step_timeout_s(os.environ), lambda fault: _end_by_fault(fault, messenger)
    )
    watchdog.start()
    try:
        serve(served, messenger, watchdog)
        served.close()
    except StepFault as fault:
        _end_by_fault(fault, messenger)
    except BaseException:  # whatever ended it: what was ready is sent first
        log.exception("the engine broke")
        messenger.flush()
        return EngineExit.FAILED
    with _ending:  # a fault that another thread tells of has the last word
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
    if engine.has_outputs:  # told before a step, which may be long, and not after it
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
    """At once: what an interpreter does at its end could wait for the device, for ever. Whichever
    thread comes first; others wait for the end."""
    _ending.acquire()
    log.critical("%s, the engine ends: %s", type(fault).__name__, fault)
    if isinstance(fault, HangFault):
        faulthandler.dump_traceback(all_threads=True)
    messenger.send(EngineFaulted(code=fault.code, message=fault.client_message))
    messenger.flush(LAST_WORDS_S)
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
