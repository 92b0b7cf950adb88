"""An engine process's two directions, each with its own thread and a queue between it and the
engine's thread, which never waits for the socket: a slow neuron cannot hold up a step."""

from __future__ import annotations

import os
import queue

from inference.engine.errors import ChannelClosedError, ChannelError
from inference.engine.faults.exit_codes import EngineExit
from inference.engine.serving.channel import Channel
from inference.protocol.engine import (
    EngineCommand,
    EngineMessage,
    decode_engine_command,
    encode_engine_frame,
)
from inference.supervised_threads import SupervisedThread


class Messenger:
    """Its queues are unbounded, which is safe: what is queued is at most what the admitted
    sequences may still generate. Nobody at the other end: the process ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._outbox: queue.SimpleQueue[EngineMessage | None] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._writer = SupervisedThread(
            self._write, name="channel-writer", restarts=False, on_broken=_end
        )

    def start(self) -> None:
        SupervisedThread(self._read, name="channel-reader", restarts=False, on_broken=_end).start()
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
            os._exit(EngineExit.ORPHANED)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._channel.send(encode_engine_frame(message))
            except ChannelError:
                os._exit(EngineExit.ORPHANED)


def _end(_error: BaseException) -> None:
    """Ends the process: an engine that cannot read its commands, or not answer, is of no use. Its
    requests fail, and the neuron starts the next one."""
    os._exit(EngineExit.FAILED)
