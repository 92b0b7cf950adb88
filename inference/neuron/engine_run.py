"""One run of a replica's engine process: what it says until it ends, and how it is made to end.

    follow() … until the process closes its end ─▶ finish(): its requests fail, it is reaped

The replica's supervising thread follows and finishes; any thread may ask for the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from inference.garbage import keep_imports
from inference.neuron.engine_process import EngineProcess
from inference.neuron.errors import engine_crashed, engine_faulted, engine_hung, model_not_loaded
from inference.neuron.model_text import ModelText
from inference.neuron.replica_context import ReplicaContext
from inference.neuron.replica_record import ReplicaRecord
from inference.neuron.silence import Silence
from inference.protocol.engine import (
    EngineFaulted,
    EngineMessage,
    Idle,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
    StepOutputs,
)
from inference.protocol.events import Failure
from inference.protocol.load import LoadFailure, LoadReport, LoadSpec
from inference.text.errors import TextError

log = logging.getLogger(__name__)

STOP_GRACE_S = 2.0
"""How long an engine that was told to stop may take before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnd:
    how: str
    """For people."""
    failure: LoadFailure
    """As a load's: what the run came to."""
    served_s: float
    """Since it had loaded."""
    is_refusal: bool
    """It said itself why it does not load; how the process ended tells nothing more."""


class EngineRun:
    def __init__(
        self,
        engine: EngineProcess,
        spec: LoadSpec,
        record: ReplicaRecord,
        context: ReplicaContext,
        on_loaded: Callable[[LoadReport], None],
    ) -> None:
        self.engine = engine
        self._on_loaded = on_loaded
        self._spec = spec
        self._record = record
        self._context = context
        self._lock = threading.Lock()
        self._silence: Silence | None = None
        """``None`` until it has loaded."""
        self._drain_deadline_s: float | None = None
        self._stop_sent_s: float | None = None
        self._fault: Failure | None = None
        """Why it ends, where that is known."""
        self._load_failure: LoadFailure | None = None
        self._ready_s: float | None = None

    # Any thread.

    def drain(self, deadline_s: float) -> None:
        """End it once its requests are done, or at the deadline."""
        with self._lock:
            self._drain_deadline_s = deadline_s
        self.tick()

    def tick(self) -> None:
        """Ends an engine that is drained, kills one that hangs or does not stop when told."""
        now_s = time.monotonic()
        with self._lock:
            drain_deadline_s, stop_sent_s = self._drain_deadline_s, self._stop_sent_s
            silent_s = 0.0 if self._silence is None else self._silence.look(now_s)
        limit_s = self._context.silence_limit_s
        if limit_s is not None and silent_s > limit_s:
            self._give_up(silent_s)
        elif stop_sent_s is not None:
            if now_s - stop_sent_s > STOP_GRACE_S:
                self.engine.kill()
        elif drain_deadline_s is not None and (
            now_s > drain_deadline_s or self._context.table.count(self.engine) == 0
        ):
            self.stop()

    def stop(self) -> None:
        """It is told to stop at once. Returns at once."""
        with self._lock:
            self._stop_sent_s = time.monotonic()
        self.engine.stop()

    def _give_up(self, silent_s: float) -> None:
        model = self._spec.model
        log.error("replica %s: its engine has said nothing for %.0f s", model, silent_s)
        with self._lock:
            self._silence = None
            self._fault = engine_hung(model)
        self.engine.abandon()

    # The supervising thread.

    def follow(self) -> None:
        """Until the process has closed its end."""
        try:
            for message in self.engine.messages():
                self._take(message)
                if self._load_failure is not None:
                    self.engine.stop()
        except Exception:
            log.exception("replica %s: bad message from its engine", self._spec.model)
            self.engine.kill()

    def finish(self, *, is_wanted: bool) -> EngineEnd:
        """After ``follow``: what it was working on fails."""
        served_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
        with self._lock:
            self._silence = None
        self._record.engine_ended(is_wanted=is_wanted)
        blame: Callable[[str], Failure] = model_not_loaded if is_wanted else engine_crashed
        failure = self._fault or blame(self._spec.model)
        self._context.publish(self._context.table.fail_engine(self.engine, failure))
        how = self.engine.reap()
        code = self._fault.code if self._fault is not None else "engine_crashed"
        crashed = LoadFailure(code=code, message=f"the engine process {how}")
        return EngineEnd(
            how=how,
            failure=self._load_failure or crashed,
            served_s=served_s,
            is_refusal=self._load_failure is not None,
        )

    def _take(self, message: EngineMessage) -> None:
        match message:
            case LoadFailedMessage(failure=failure):
                self._load_failure = failure
            case Loaded(report=report):
                self._become_ready(report)
            case _:
                self._take_while_running(message)

    def _become_ready(self, report: LoadReport) -> None:
        try:
            text = ModelText.load(self._spec, report)
        except TextError as error:
            self._load_failure = LoadFailure(code="bad_file", message=str(error))
            return
        keep_imports()  # the text layer's are among them from the first model on
        with self._lock:
            self._silence = Silence()
        self._on_loaded(report)
        self._record.engine_loaded(self.engine, text)
        log.info("replica %s: ready after %.1f s", self._spec.model, report.load_seconds)
        self._context.on_change()
        self._ready_s = time.monotonic()

    def _take_while_running(self, message: EngineMessage) -> None:
        if self._silence is not None:
            self._silence.end()
        match message:
            case StepOutputs(outputs=outputs, stats=stats):
                applied = self._context.table.apply(outputs)
                for sequence_id in applied.ended_early:
                    self.engine.cancel(sequence_id)
                self._context.publish(applied.events)
                self._record.worked(stats)
            case Idle(stats=stats):
                self._record.idled(stats)
            case LoadProgressed(progress=progress):
                self._record.progressed(progress)
            case EngineFaulted(code=code, message=text):
                self._fault = engine_faulted(self._spec.model, code, text)
        if self._drain_deadline_s is not None:
            self.tick()
