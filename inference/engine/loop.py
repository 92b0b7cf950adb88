"""The loop of an engine process: commands in, steps, messages out. Either direction has its own
thread and a queue between it and the engine's thread, which never waits for the socket: a slow
neuron cannot hold up a step.

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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import psutil
import torch

from inference.channel import Channel, ChannelClosedError, ChannelError
from inference.engine.embedding_engine import EmbeddingEngine
from inference.engine.engine import Engine
from inference.engine.errors import EngineExit, HangFault
from inference.engine.load.load_engine import LoadedEngine
from inference.engine.load.sleeper import Sleeper
from inference.engine.step import Output
from inference.logs import phases
from inference.protocol.engine import (
    Awake,
    CancelSequence,
    DropAdapter,
    EmbedSequences,
    EngineCommand,
    EngineMessage,
    EngineStats,
    FellAsleep,
    Idle,
    SequenceFailed,
    SequenceStep,
    Shutdown,
    Sleep,
    StepOutputs,
    SubmitSequence,
    Wake,
    decode_engine_command,
    encode_engine_frame,
)
from inference.supervised_threads import SupervisedThread

logger = logging.getLogger(__name__)

SEND_WITHIN_S = 0.02
"""How long a token may be held for the next ones: less than a reader sees."""
STATS_INTERVAL_S = 1.0
FINAL_MESSAGE_TIMEOUT_S = 2.0
CHECKS_PER_TIMEOUT = 4
MAX_CHECK_INTERVAL_S = 1.0


AnyEngine = Engine | EmbeddingEngine

ASLEEP = EngineStats(
    in_flight=0,
    queue_depth=0,
    kv_blocks_used=0,
    kv_blocks_total=0,
    decode_tokens_per_s=0.0,
    prefill_tokens_per_s=0.0,
    last_forward_unix_s=None,
)


class OutputBatcher:
    def __init__(self, send: Callable[[StepOutputs], None]) -> None:
        self._send = send
        self._held: list[StepOutputs] = []
        self._last_sent_s = 0.0

    def add(self, outputs: StepOutputs, *, now_s: float, next_step_s: float = 0.0) -> None:
        """Sends at once a first token or an end, or if waiting would take too long."""
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
    """An engine that cannot read commands or answer is of no use; the neuron starts the next."""
    os._exit(EngineExit.FAILED)


def logging_ends(send: Callable[[EngineMessage], None]) -> Callable[[StepOutputs], None]:

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
    """Bytes that torch has reserved, or without a GPU the process's resident bytes."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved())
    return int(psutil.Process().memory_info().rss)


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
        started_s, capture_problem = time.monotonic(), ""
        if self.engine is None:
            assert self._sleeper is not None, "it fell asleep"
            self.engine = self._sleeper.wake()
            capture_problem = self._sleeper.capture_problem
        return Awake(seconds=time.monotonic() - started_s, capture_problem=capture_problem)

    def close(self) -> None:
        if isinstance(self.engine, Engine):
            self.engine.close()


def serve(served: Served, messenger: Messenger, watchdog: StepWatchdog) -> None:
    """Raises ``StepFault`` where the device is not sound."""
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


def _take_commands(served: Served, messenger: Messenger, batcher: OutputBatcher) -> bool:
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
