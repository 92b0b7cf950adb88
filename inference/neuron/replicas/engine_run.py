"""One run of a replica's engine process: receives its messages until it ends, and ends it.

    follow() … until the process closes its end ─▶ finish(): its requests fail, it is reaped

The replica's supervising thread follows and finishes; any thread may ask for the end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from inference.garbage import freeze_heap
from inference.neuron.errors import (
    EngineGoneError,
    engine_crashed,
    engine_faulted,
    engine_hung,
    model_unloaded,
)
from inference.neuron.loads.watch import SilenceTimer
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.text.text_loading import load_text
from inference.protocol.engine import (
    Awake,
    EngineFaulted,
    EngineMessage,
    FellAsleep,
    Idle,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
    Sleep,
    StepOutputs,
    Wake,
)
from inference.protocol.events import Failure
from inference.protocol.held import broke_worker, load_mark
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.protocol.load_report import AsleepBytes, LoadReport
from inference.text.errors import TextError

log = logging.getLogger(__name__)


SLEEP_WAKE_TIMEOUT_S = 300.0
STOP_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnd:
    how: str
    failure: LoadFailure
    served_s: float
    is_refusal: bool
    """The engine reported why it does not load; the process' exit status adds nothing."""


class EngineRun:
    def __init__(
        self,
        engine: EngineProcess,
        spec: LoadSpec,
        record: ReplicaRecord,
        context: ReplicaContext,
        on_loaded: Callable[[LoadReport], None],
        on_asleep: Callable[[AsleepBytes], None],
        on_awake: Callable[[float], None],
    ) -> None:
        """``on_asleep`` takes what it holds, ``on_awake`` how many seconds it took."""
        self.engine = engine
        self._on_loaded = on_loaded
        self._on_asleep = on_asleep
        self._on_awake = on_awake
        self._spec = spec
        self._record = record
        self._context = context
        self._lock = threading.Lock()
        self._silence: SilenceTimer | None = None
        """``None`` until it has loaded."""
        self._drain_deadline_s: float | None = None
        self._sleeps_when_drained = False
        self._transition_deadline_s: float | None = None
        """Set while it falls asleep or wakes, during which it sends nothing."""
        self.has_ended = False
        self._stop_sent_s: float | None = None
        self._fault: Failure | None = None
        self._load_failure: LoadFailure | None = None
        self._begun_s = time.monotonic()
        self._ready_s: float | None = None

    # Any thread.

    def drain(self, deadline_s: float, *, then_sleep: bool = False) -> None:
        """End it once its requests are done, or at the deadline. ``then_sleep``: done with its
        requests, it falls asleep instead."""
        with self._lock:
            self._drain_deadline_s = deadline_s
            self._sleeps_when_drained = then_sleep
        self.tick()

    def wake(self) -> None:
        self._turn(Wake())

    def tick(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            drain_deadline_s, stop_sent_s = self._drain_deadline_s, self._stop_sent_s
            silent_s = 0.0 if self._silence is None else self._silence.check(now_s)
            transition_deadline_s = self._transition_deadline_s
        limit_s = self._context.silence_limit_s
        if limit_s is not None and silent_s > limit_s:
            self._give_up(silent_s)
        elif transition_deadline_s is not None and now_s > transition_deadline_s:
            self._give_up(SLEEP_WAKE_TIMEOUT_S)
        elif stop_sent_s is not None:
            if now_s - stop_sent_s > STOP_GRACE_S:
                self.engine.kill()
        elif drain_deadline_s is not None and (now_s > drain_deadline_s or self._is_drained()):
            self._drained(is_overdue=now_s > drain_deadline_s)

    def _is_drained(self) -> bool:
        """An engine that is to sleep waits for requests on their way to it too; one that ends
        refuses them."""
        table = self._context.table
        if self._sleeps_when_drained:
            return not table.has_work_for(self._spec.model)
        return not table.submits_of(self.engine)

    def _drained(self, *, is_overdue: bool) -> None:
        with self._lock:
            falls_asleep = self._sleeps_when_drained and not is_overdue
            if falls_asleep and self._drain_deadline_s is None:
                return  # another thread has sent the command
            if falls_asleep:
                self._drain_deadline_s = None
        if falls_asleep:
            self._turn(Sleep())
        else:
            self.stop()

    def _turn(self, command: Sleep | Wake) -> None:
        with self._lock:
            self._silence = None
            self._transition_deadline_s = time.monotonic() + SLEEP_WAKE_TIMEOUT_S
        with contextlib.suppress(EngineGoneError):  # its end is reported by messages()
            self.engine.send(command)

    def stop(self) -> None:
        """Ask the engine to stop at once. Does not wait for it."""
        with self._lock:
            self._stop_sent_s = time.monotonic()
        self.engine.stop()

    def end_load(self, failure: LoadFailure) -> None:
        self._load_failure = failure
        self.engine.abandon()

    def _give_up(self, silent_s: float) -> None:
        model = self._spec.model
        log.error("replica %s: its engine has sent nothing for %.0f s", model, silent_s)
        with self._lock:
            self._silence = None
            self._fault = engine_hung(model)
        self.engine.abandon()

    # The supervising thread.

    def follow(self) -> None:
        try:
            for message in self.engine.messages():
                self._take(message)
                if self._load_failure is not None:
                    self.engine.stop()
        except BaseException:
            log.exception("replica %s: bad message from its engine", self._spec.model)
            self.engine.kill()

    def finish(self, *, is_wanted: bool) -> EngineEnd:
        """Ends the run and returns how the engine ended. Call it after ``follow``. The requests
        that the engine was working on fail."""
        served_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
        with self._lock:
            self._silence = self._transition_deadline_s = None
        self.has_ended = True
        self._record.engine_ended(is_wanted=is_wanted)
        how = self.engine.reap()
        failure = self._failure_of_requests(how, is_wanted=is_wanted)
        self._context.publish(self._context.table.fail_engine(self.engine, failure))
        code = self._fault.code if self._fault is not None else "engine_crashed"
        crashed = LoadFailure(code=code, message=f"the engine process {how}")
        return EngineEnd(
            how=how,
            failure=self._load_failure or crashed,
            served_s=served_s,
            is_refusal=self._load_failure is not None,
        )

    def _failure_of_requests(self, how: str, *, is_wanted: bool) -> Failure:
        """The failure of its open requests. A request that ran alone when the engine died must not
        be retried; of several, the culprit is unknown."""
        if self._fault is not None:
            return self._fault
        if is_wanted:
            return model_unloaded(self._spec.model)
        submits = self._context.table.submits_of(self.engine)
        if len(submits) != 1 or not self.engine.ended_by_itself:
            return engine_crashed(self._spec.model)
        submit = submits[0]
        log.error(
            "request %s (account %s, key %s) ended the engine of %s, which %s; it is not run again",
            *(submit.request_id, submit.account, submit.key or "-", submit.model, how),
        )
        return broke_worker(f"the engine process of model {self._spec.model!r}")

    def _take(self, message: EngineMessage) -> None:
        match message:
            case LoadFailedMessage(failure=failure):
                self._load_failure = failure
            case Loaded(report=report):
                if any(stage.neuron for stage in self._spec.stages):
                    # Stages on other neurons hold their memory: none of it is given away.
                    report = msgspec.structs.replace(report, asleep=None)
                self._record.progressed(
                    LoadProgress(
                        stage=LoadStage.WARMUP,
                        done=1,
                        total=1,
                        unit="steps",
                        detail="its tokenizer",
                    )
                )
                self._become_ready(report)
            case FellAsleep(held=held):
                self._end_transition()
                self._on_asleep(held)
            case Awake(seconds=seconds):
                self._end_transition()
                self._on_awake(seconds)
            case _:
                self._take_while_running(message)

    def _become_ready(self, report: LoadReport) -> None:
        mark = load_mark(self._spec.model)
        self._context.marks.begin(mark)
        try:
            text = load_text(self._spec, report, self._context.workers)
        except TextError as error:
            self._load_failure = LoadFailure(code="bad_file", message=str(error))
            return
        finally:
            self._context.marks.end(mark)
        freeze_heap()  # the text layer's are among them from the first model on
        with self._lock:
            self._silence = SilenceTimer()
        self._on_loaded(report)
        self._record.engine_loaded(self.engine, text)
        took_s = time.monotonic() - self._begun_s
        log.info("replica %s: ready after %.1f s", self._spec.model, took_s)
        self._context.on_change()
        self._ready_s = time.monotonic()

    def _end_transition(self) -> None:
        with self._lock:
            self._silence, self._transition_deadline_s = SilenceTimer(), None

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
