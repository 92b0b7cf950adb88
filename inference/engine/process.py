"""The engine as a process at the end of a socket: ``python -m inference.engine --fd N``.

    reader thread ──commands──▶ inbox ──▶ engine thread (main) ──▶ outbox ──▶ writer thread
         │ end of file                               │ a step that does not end
         ▼                                           ▼
    os._exit: no engine outlives its neuron       watchdog thread ─▶ os._exit

The first frame is a ``LoadSpec``; then ``EngineCommand`` down and ``EngineMessage`` up. With
``stage_of`` the process holds that stage alone (``divided.remote_stage``). What it serves
(``Served``) is an engine, or a model that sleeps until it is wanted again. What a step
can survive is the engine's business; what it cannot ends the process, in its own way and with its
own code (``EngineExit``), and the neuron starts the next one.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import socket
import threading
from pathlib import Path
from typing import NoReturn

import msgspec

from inference.channel import Channel, ChannelClosedError
from inference.engine.divided.remote_stage import hold_stage
from inference.engine.errors import EngineExit, HangFault, StepFault
from inference.engine.faults import load_failure
from inference.engine.load.load_engine import LoadedEngine, configure_threads, load_engine
from inference.engine.loop import (
    FINAL_MESSAGE_TIMEOUT_S,
    Messenger,
    Served,
    StepWatchdog,
    serve,
)
from inference.environment import forget_secrets
from inference.garbage import freeze_heap
from inference.logs import configure_logging
from inference.protocol.engine import (
    EngineFaulted,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
)
from inference.protocol.load import LoadSpec
from inference.settings.neuron import ENGINE_CHECKS, STEP_TIMEOUT_S
from inference.settings.storage import DATA_DIR

log = logging.getLogger(__name__)

_ending = threading.Lock()


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
    del loaded  # else it would keep an engine that sleeps
    return run(served, messenger)


def _load(spec: LoadSpec, messenger: Messenger) -> LoadedEngine | None:
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
