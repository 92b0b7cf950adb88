"""The engine as a process at the end of a socket: ``python -m inference.engine --fd N``.

    reader thread ──commands──▶ inbox ──▶ engine thread (main) ──▶ outbox ──▶ writer thread
         │ end of file
         ▼
    os._exit: no engine outlives its neuron, whatever it is doing

The first frame is a ``LoadSpec``; then ``EngineCommand`` down and ``EngineMessage`` up. The engine
thread never waits for the socket, so a slow neuron cannot hold up a step.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec
import torch

from inference.engine.channel import Channel
from inference.engine.embedding_engine import EmbeddingEngine
from inference.engine.engine import Engine
from inference.engine.errors import ChannelClosedError, ChannelError, DoesNotFitError
from inference.engine.load import LoadedEngine, configure_threads, load_engine
from inference.loading.errors import LoadError
from inference.models.errors import MissingWeightsError, UnknownArchitectureError
from inference.protocol.engine import (
    CancelSequence,
    EmbedSequences,
    EngineCommand,
    EngineMessage,
    Idle,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
    SequenceFailed,
    Shutdown,
    StepOutputs,
    SubmitSequence,
    decode_engine_command,
    encode_engine_frame,
)
from inference.protocol.load import LoadFailure, LoadSpec

log = logging.getLogger(__name__)

AnyEngine = Engine | EmbeddingEngine

STATS_INTERVAL_S = 1.0
EXIT_OK, EXIT_FAILED, EXIT_ORPHANED = 0, 1, 2


class Messenger:
    """Both directions of the channel, each with its own thread and an unbounded queue between it
    and the engine. Unbounded is safe: what is queued is at most what the admitted sequences may
    still generate."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._outbox: queue.SimpleQueue[EngineMessage | None] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="channel-writer", daemon=True)

    def start(self) -> None:
        threading.Thread(target=self._read, name="channel-reader", daemon=True).start()
        self._writer.start()

    def send(self, message: EngineMessage) -> None:
        self._outbox.put(message)

    def flush(self, timeout_s: float = 5.0) -> None:
        """Write what is queued and stop writing."""
        self._outbox.put(None)
        self._writer.join(timeout_s)

    def _read(self) -> None:
        try:
            while True:
                self.inbox.put(decode_engine_command(self._channel.receive()))
        except ChannelClosedError:
            os._exit(EXIT_ORPHANED)
        except (ChannelError, msgspec.MsgspecError):
            log.exception("the neuron sent something that is not a command")
            os._exit(EXIT_FAILED)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._channel.send(encode_engine_frame(message))
            except ChannelError:
                os._exit(EXIT_ORPHANED)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the neuron")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    # Ctrl-C reaches the whole process group; stopping us in order is the supervisor's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=options.fd))
    try:
        spec = msgspec.msgpack.decode(channel.receive(), type=LoadSpec)
    except ChannelClosedError:
        return EXIT_ORPHANED
    messenger = Messenger(channel)
    messenger.start()
    loaded = _load(spec, messenger)
    if loaded is None:
        messenger.flush()
        return EXIT_FAILED
    messenger.send(Loaded(report=loaded.report))
    return serve(loaded.engine, messenger)


def _load(spec: LoadSpec, messenger: Messenger) -> LoadedEngine | None:
    """``None`` when it failed; the neuron has been told why."""
    data_dir = Path(os.environ.get("HELEXA_DATA_DIR") or "var").resolve()
    try:
        configure_threads()
        return load_engine(
            spec,
            data_dir,
            lambda progress: messenger.send(LoadProgressed(progress=progress)),
            check_when_idle=os.environ.get("HELEXA_ENGINE_CHECKS") == "1",
        )
    except LoadError as error:
        failure = error.failure
    except DoesNotFitError as error:
        failure = LoadFailure(code="does_not_fit", message=str(error))
    except UnknownArchitectureError as error:
        failure = LoadFailure(code="unknown_architecture", message=str(error))
    except MissingWeightsError as error:
        failure = LoadFailure(code="bad_file", message=str(error))
    except Exception as error:
        log.exception("loading %s failed", spec.model)
        kind = type(error).__name__
        failure = LoadFailure(
            code="engine_crashed", message=f"{kind} while loading; the neuron's log says more"
        )
    messenger.send(LoadFailedMessage(failure=failure))
    return None


def serve(engine: AnyEngine, messenger: Messenger) -> int:
    """The engine thread's loop; returns the process's exit code."""
    last_sent_s = 0.0
    while True:
        if not _take_commands(engine, messenger):
            messenger.flush()
            return EXIT_OK
        if engine.has_work:
            try:
                outputs = engine.step()
            except torch.OutOfMemoryError:
                log.exception("out of memory in a step")
                outputs = engine.fail_all("out_of_memory", "the device ran out of memory")
            except Exception:
                log.exception("a step failed")
                messenger.send(engine.fail_all("engine_error", "the engine failed in a step"))
                messenger.flush()
                return EXIT_FAILED
            if outputs.outputs or time.monotonic() - last_sent_s >= STATS_INTERVAL_S:
                messenger.send(outputs)
                last_sent_s = time.monotonic()
        elif time.monotonic() - last_sent_s >= STATS_INTERVAL_S:
            messenger.send(Idle(stats=engine.stats()))
            last_sent_s = time.monotonic()


def _take_commands(engine: AnyEngine, messenger: Messenger) -> bool:
    """Hand over what the neuron sent; wait for it when there is nothing else to do. ``False``
    after ``Shutdown``."""
    timeout_s = 0.0 if engine.has_work else STATS_INTERVAL_S
    while True:
        try:
            command = messenger.inbox.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return True
        timeout_s = 0.0
        if isinstance(command, Shutdown):
            messenger.send(engine.cancel_all())
            return False
        if isinstance(command, CancelSequence):
            engine.cancel(command)
        else:
            _submit(engine, command, messenger)


def _submit(
    engine: AnyEngine, command: SubmitSequence | EmbedSequences, messenger: Messenger
) -> None:
    match engine, command:
        case Engine(), SubmitSequence():
            engine.submit(command)
        case EmbeddingEngine(), EmbedSequences():
            engine.submit(command)
        case _:  # the neuron knows what it loaded, and should have refused it
            message = "this engine runs a model of the other kind"
            failed = SequenceFailed(
                sequence_id=command.sequence_id, code="engine_error", message=message
            )
            messenger.send(StepOutputs(outputs=[failed], stats=engine.stats()))
