"""An engine process's two directions, each with its own thread and a queue between it and the
engine's thread, which never waits for the socket: a slow neuron cannot hold up a step.

    step ─▶ OutputBatcher ─▶ logging_ends ─▶ Messenger.send ─▶ outbox ─▶ writer thread ─▶ neuron

Outputs are batched first, because waking the neuron and the gateway costs as much as one short
decode step: those of short steps are held for up to 20 ms and sent in one message.

    steps   │a│b│c│d│e│f│g│h│…
    sent     a       e       i     a: a first token, which is waited for; e: b c d e
"""

from __future__ import annotations

import logging
import os
import queue
from collections.abc import Callable

import msgspec
import psutil
import torch

from inference.channel import Channel, ChannelClosedError, ChannelError
from inference.engine.faults.kinds import EngineExit
from inference.engine.step import Output
from inference.logs.formatters import phases
from inference.protocol.engine import (
    EngineCommand,
    EngineMessage,
    EngineStats,
    SequenceFailed,
    SequenceStep,
    StepOutputs,
    decode_engine_command,
    encode_engine_frame,
)
from inference.supervised_threads import SupervisedThread

logger = logging.getLogger(__name__)

SEND_WITHIN_S = 0.02
"""How long a token may be held for the next ones: less than a reader sees."""
STATS_INTERVAL_S = 1.0
"""The longest time without a message to the neuron."""


class OutputBatcher:
    def __init__(self, send: Callable[[StepOutputs], None]) -> None:
        self._send = send
        self._held: list[StepOutputs] = []
        self._last_sent_s = 0.0

    def add(self, outputs: StepOutputs, *, now_s: float, next_step_s: float = 0.0) -> None:
        """Queue one step's outputs. Sends at once if an output is a first token or an end, or if
        waiting for the next step, which takes ``next_step_s``, would exceed the limit."""
        if outputs.outputs:
            self._held.append(outputs)
            would_be_held_s = now_s + next_step_s - self._last_sent_s
            if would_be_held_s > SEND_WITHIN_S or any(map(_is_waited_for, outputs.outputs)):
                self.flush(now_s)
        elif self.is_quiet(now_s):
            self._held.append(outputs)
            self.flush(now_s)

    def flush(self, now_s: float) -> None:
        if not self._held:
            return
        held, self._held = self._held, []
        outputs = [output for one in held for output in one.outputs]
        self._send(StepOutputs(outputs=outputs, stats=held[-1].stats))
        self._last_sent_s = now_s

    def is_quiet(self, now_s: float) -> bool:
        """Whether the last message is so old that the neuron needs new stats."""
        return now_s - self._last_sent_s >= STATS_INTERVAL_S

    def record_sent(self, now_s: float) -> None:
        self._last_sent_s = now_s


def _is_waited_for(output: object) -> bool:
    """Whether it is the first token of its sequence, or an end."""
    if not isinstance(output, SequenceStep):
        return True
    return output.num_cached_tokens is not None or output.finish_reason is not None


class Messenger:
    """Exchanges messages with the neuron, in threads of its own. Its queues are unbounded, which is
    safe: they hold at most the outputs that the admitted sequences may still generate. When the
    neuron closes its end, the process ends."""

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
        """Writes the queued messages and stops writing."""
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


def logging_ends(send: Callable[[EngineMessage], None]) -> Callable[[StepOutputs], None]:
    """Wraps ``send``: logs the ends of sequences first, and adds the bytes held on the device to
    their timing."""

    def log_and_send(outputs: StepOutputs) -> None:
        if any(map(_has_ended, outputs.outputs)):
            logged = [_logged(output, outputs.stats) for output in outputs.outputs]
            outputs = msgspec.structs.replace(outputs, outputs=logged)
        send(outputs)

    return log_and_send


def _has_ended(output: Output) -> bool:
    is_last_step = isinstance(output, SequenceStep) and output.timing is not None
    return is_last_step or isinstance(output, SequenceFailed)


def _logged(output: Output, stats: EngineStats) -> Output:
    if isinstance(output, SequenceFailed):
        logger.warning("%s %s: %s", output.sequence_id, output.code, output.message)
    if not isinstance(output, SequenceStep) or output.timing is None:
        return output
    timing = msgspec.structs.replace(output.timing, memory_bytes=held_bytes())
    logger.info(
        "%s %s completion=%d%s kv_blocks=%d/%d",
        output.sequence_id,
        output.finish_reason,
        output.num_output_tokens,
        phases(timing, output.num_output_tokens),
        stats.kv_blocks_used,
        stats.kv_blocks_total,
    )
    return msgspec.structs.replace(output, timing=timing)


def held_bytes() -> int:
    """Returns the bytes held on the device: what torch has reserved of it, or without a GPU the
    process's resident bytes."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved())
    return int(psutil.Process().memory_info().rss)
