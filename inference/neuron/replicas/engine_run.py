"""The engines of a replica, one after the other: started, followed, checked, ended.

    thread: admitted ─▶ start engine ─▶ follow it … end of file ─▶ fail what it ran ─▶ wait ─┐
                             ▲                                                              │
                             └──────────────────────────────────────────────────────────────┘

An engine that dies asleep counts as unloaded; one that dies while it wakes is restarted.
"""

from __future__ import annotations

import contextlib
import logging
import time

import msgspec

from inference.garbage import freeze_heap
from inference.loading.sources.sources import local_identity
from inference.neuron import errors
from inference.neuron.loads.watch import SilenceTimer
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.record import (
    EngineOwner,
    ReplicaContext,
    ReplicaRecord,
    spans_neurons,
)
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.text.model_text import load_text
from inference.protocol import engine as messages
from inference.protocol.delivery import broke_worker, load_mark
from inference.protocol.events import Failure
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import (
    TOO_LARGE,
    AsleepBytes,
    LoadFailure,
    LoadProgress,
    LoadReport,
    LoadStage,
)
from inference.supervised_threads import SupervisedThread
from inference.text.errors import TextError

log = logging.getLogger(__name__)

SLEEP_WAKE_TIMEOUT_S = 300.0
NO_RESTARTS = RestartPolicy(max_quick_failures=0)
READING_TOKENIZER = LoadProgress(
    stage=LoadStage.WARMUP, done=1, total=1, unit="steps", detail="its tokenizer"
)


class EngineRuns(EngineOwner, ReplicaRecord):
    def __init__(
        self,
        spec: LoadSpec,
        context: ReplicaContext,
        *,
        recovering: bool = False,
        predecessor: ReplicaRecord | None = None,
    ) -> None:
        """``predecessor`` must be gone before this one's engine starts."""
        failed = 0 if predecessor is None else predecessor.num_failed_loads_by(spec)
        ReplicaRecord.__init__(self, spec, recovering=recovering, num_failed_loads=failed)
        EngineOwner.__init__(self, context)
        self._predecessor = predecessor
        name = f"replica-{spec.model}"
        self.start = SupervisedThread(self._supervise, name=name, restarts=False).start

    def _check_engine(self) -> None:
        """Decides under the lock what the engine needs now, and does it without."""
        now_s = time.monotonic()
        with self._changed:
            engine, drain_by_s, turns_by_s = self._engine, self._drain_by_s, self._turns_by_s
            if engine is None:
                return
            silent_s = engine.check(self._context.silence_limit_s)
            if turns_by_s is not None and now_s > turns_by_s:
                silent_s = SLEEP_WAKE_TIMEOUT_S
            if silent_s:
                engine.silence = self._turns_by_s = None
                self._fault = errors.of_model("engine_hung", self.spec.model)
            is_overdue = drain_by_s is not None and now_s > drain_by_s
            is_done = (
                drain_by_s is not None
                and not (silent_s or engine.is_stopping)
                and (is_overdue or self._is_drained(engine))
            )
            falls_asleep = is_done and self._is_falling_asleep and not is_overdue
            if falls_asleep:
                self._drain_by_s = None
                self._begin_turn(engine)
        if silent_s:
            model = self.spec.model
            log.error("replica %s: its engine has sent nothing for %.0f s", model, silent_s)
            engine.abandon()
        elif falls_asleep:
            self._send(messages.Sleep())
        elif is_done:
            engine.stop()

    def _is_drained(self, engine: EngineProcess) -> bool:
        """An engine that is to sleep also waits for requests on their way to it; one that ends
        refuses them."""
        table = self._context.table
        if self._is_falling_asleep:
            return not table.has_work_for(self.spec.model)
        return not table.submits_of(engine)

    def _begin_turn(self, engine: EngineProcess) -> None:
        """The caller holds the lock."""
        engine.silence = None
        self._turns_by_s = time.monotonic() + SLEEP_WAKE_TIMEOUT_S

    def _send(self, command: messages.Sleep | messages.Wake | messages.DropAdapter) -> None:
        if (engine := self._engine) is not None:
            with contextlib.suppress(errors.EngineGoneError):  # its end is reported by messages()
                engine.send(command)

    # The supervising thread.

    def _supervise(self) -> None:
        if self._predecessor is not None:
            self._predecessor.wait_gone()
            self._predecessor = None
        try:
            while not self._end_asked.is_set():
                delay_s = self._run_contained()
                if delay_s is None:
                    break
                self._end_asked.wait(delay_s)
        finally:
            if not self._is_abandoned:
                self._leave_loads()

    def _leave_loads(self) -> None:
        self._context.loads.release(self.load)
        with self._changed:
            self.is_gone = True
            self._changed.notify_all()
            is_kept = self.status is ReplicaStatus.FAILED
        if not is_kept:
            self._context.on_gone(self.load)
        self._context.on_change()

    def _run_contained(self) -> float | None:
        self._stall = self._load_failure = self._fault = None
        try:
            return self._run_engine()
        except BaseException:
            log.exception("replica %s: its supervisor broke", self.spec.model)
            if self._is_abandoned:
                return None
            if (engine := self._engine) is not None:
                engine.kill()
                self._finish(engine)
            self._context.loads.engine_ended(self.load)
            message = "the neuron broke while it followed the engine; see its log"
            return self._after(LoadFailure(code="engine_crashed", message=message))

    def _run_engine(self) -> float | None:
        """Returns the seconds until the next engine starts; ``None``: there is none."""
        try:
            spec = self._engine_spec()
        except errors.LoadRefusedError as refused:
            return self._after_refusal(refused.failure)
        if spec is None:
            return None
        try:
            engine = self._context.start_engine(spec)
        except OSError as error:
            return self._after_crash(f"could not be started: {error}")
        self._context.loads.started(self.load, engine.pid)
        how, served_s = self._follow(engine)
        if self._is_abandoned:
            return None
        was_resting = self._rested()
        self._context.loads.engine_ended(self.load)
        if self._end_asked.is_set() or was_resting:  # asleep, it counts as unloaded
            log.info("replica %s: engine process %d %s", self.spec.model, engine.pid, how)
            return None
        if self._load_failure is not None:
            return self._after_refusal(self._load_failure)
        return self._after_crash(how, served_s)

    def _engine_spec(self) -> LoadSpec | None:
        if self.load.is_settled:
            return self._context.loads.begin_again(self.load)
        self.progressed(LoadProgress(stage=LoadStage.STARTING))
        self.load.file_identity = local_identity(self.spec)
        spec = self._context.admission.admit(self.load, self._is_cancelled, self.progressed)
        if spec is None and self._stall is not None:
            raise errors.LoadRefusedError(self._stall)
        return None if self._is_abandoned else spec

    def _is_cancelled(self) -> bool:
        return self._end_asked.is_set() or self._stall is not None

    def _follow(self, engine: EngineProcess) -> tuple[str, float]:
        """Returns how the engine ended, for people, and for how many seconds it had been loaded."""
        with self._changed:
            self._engine, self._ready_s = engine, None
        self.progressed(LoadProgress(stage=LoadStage.STARTING))
        if self._end_asked.is_set():  # asked between the check and the start
            engine.stop()
        try:
            for message in engine.messages():
                self._take(message, engine)
                if self._load_failure is not None:
                    engine.stop()
        except BaseException:
            log.exception("replica %s: bad message from its engine", self.spec.model)
            engine.kill()
        return self._finish(engine)

    def _finish(self, engine: EngineProcess) -> tuple[str, float]:
        served_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
        is_wanted = self._end_asked.is_set()
        with self._changed:
            self._engine = self._stats = self._asleep = self._engine_since_unix_s = None
            self._turns_by_s = None
            if self.status is ReplicaStatus.READY and not is_wanted:
                self._move_to(ReplicaStatus.RECOVERING)
        how = engine.reap()
        failure = self._failure_of_requests(engine, how, is_wanted=is_wanted)
        self._context.publish(self._context.table.fail_engine(engine, failure))
        return how, served_s

    def _failure_of_requests(self, engine: EngineProcess, how: str, *, is_wanted: bool) -> Failure:
        """A request that ran alone when the engine died must not be retried; of several, the
        culprit is unknown."""
        if self._fault is not None:
            return self._fault
        if is_wanted:
            return errors.of_model("draining", self.spec.model)
        submits = self._context.table.submits_of(engine)
        if len(submits) != 1 or not engine.ended_by_itself:
            return errors.of_model("engine_crashed", self.spec.model)
        submit = submits[0]
        log.error(
            "request %s (account %s, key %s) ended the engine of %s, which %s; it is not run again",
            *(submit.request_id, submit.account, submit.key or "-", submit.model, how),
        )
        return broke_worker(f"the engine process of model {self.spec.model!r}")

    def _take(self, message: messages.EngineMessage, engine: EngineProcess) -> None:
        match message:
            case messages.StepOutputs(outputs=outputs, stats=stats):
                applied = self._context.table.apply(outputs)
                for sequence_id in applied.ended_early:
                    engine.cancel(sequence_id)
                self._context.publish(applied.events)
                self.reported(stats, worked=True)
            case messages.Idle(stats=stats):
                self.reported(stats, worked=False)
            case messages.LoadProgressed(progress=progress):
                self.progressed(progress)
            case messages.EngineFaulted(code=code, message=text):
                self._fault = errors.retryable(code, f"model {self.spec.model!r}: {text}")
            case messages.LoadFailedMessage(failure=failure):
                self._load_failure = failure
            case messages.Loaded(report=report):
                self._become_ready(report, engine)
            case messages.FellAsleep(held=held):
                self._fell_asleep(held, engine)
            case messages.Awake(seconds=seconds):
                self._woke(seconds, engine)
        if self._drain_by_s is not None:
            self._check_engine()

    def _become_ready(self, report: LoadReport, engine: EngineProcess) -> None:
        spec = self.spec
        self.progressed(READING_TOKENIZER)
        if spans_neurons(spec):
            # Stages on other neurons hold their memory: none of it is given away.
            report = msgspec.structs.replace(report, asleep=None)
        mark = load_mark(spec.model)
        self._context.marks.begin(mark)
        try:
            text = load_text(spec, report, self._context.workers)
        except TextError as error:
            self._load_failure = LoadFailure(code="bad_file", message=str(error))
            return
        finally:
            self._context.marks.end(mark)
        if self._is_abandoned:
            engine.kill()
            return
        freeze_heap()  # includes the text layer's objects from the first model on
        engine.silence = SilenceTimer()
        self._context.loads.loaded(self.load, report)
        self.engine_loaded(text)
        self._ready_s = time.monotonic()
        log.info("replica %s: ready after %.1f s", spec.model, self._ready_s - engine.started_s)
        self._context.on_change()

    def _fell_asleep(self, held: AsleepBytes, engine: EngineProcess) -> None:
        engine.silence = SilenceTimer()
        with self._changed:
            self._turns_by_s = None
            if not self._is_falling_asleep:
                return  # its sleep was called off
            self._is_falling_asleep = False
            self._context.loads.fell_asleep(self.load, held)
            self._asleep, self._stats = held, None
            self._move_to(ReplicaStatus.ASLEEP)
        log.info("%s is asleep", self.spec.model)
        self._context.on_change()

    def _woke(self, seconds: float, engine: EngineProcess) -> None:
        engine.silence = SilenceTimer()
        self._context.loads.awake(self.load)
        with self._changed:
            self._turns_by_s = self._asleep = None
            if self.status is ReplicaStatus.LOADING:
                self._move_to(ReplicaStatus.READY)
        log.info("%s woke in %.2f s", self.spec.model, seconds)
        self._context.on_change()

    def _rested(self) -> bool:
        """A dead engine that was to wake is loaded from its files."""
        with self._changed:
            was_falling, self._is_falling_asleep = self._is_falling_asleep, False
            waker = self._waker
        if waker is not None:
            waker.join()
        rested = was_falling or self.status is ReplicaStatus.ASLEEP
        if rested or self.load.asleep is not None:
            self._context.loads.release(self.load)
            self.load.is_settled = False
        return rested

    # These record the end of an engine. They return the seconds until the next one starts;
    # ``None``: there is none.

    def _after_refusal(self, failure: LoadFailure) -> float | None:
        if self._is_abandoned:
            return None
        self._context.loads.release(self.load)
        self.load.is_settled = False  # its memory is no longer kept: the next one asks for it
        if self._end_asked.is_set():
            return None
        spec = self.load.spec
        if failure.code in TOO_LARGE and not spec.stages and spec.tensor_parallel == 1:
            # The control can plan it over several devices by what its layers take.
            free_bytes = self._context.loads.most_free_bytes()
            costs = self._context.checker.costs(
                spec, self.load.weights, free_bytes, self._is_cancelled
            )
            failure = msgspec.structs.replace(failure, costs=costs)
        log.error("replica %s: not loaded (%s): %s", spec.model, failure.code, failure.message)
        if failure.is_permanent:
            self._context.discard(self.load)
        return self._after(failure)

    def _after_crash(self, how: str, served_s: float = 0.0) -> float | None:
        log.error("replica %s: the engine process %s", self.spec.model, how)
        code = "engine_crashed" if self._fault is None else self._fault.code
        return self._after(LoadFailure(code=code, message=f"the engine process {how}"), served_s)

    def _after(self, failure: LoadFailure, served_s: float = 0.0) -> float | None:
        policy = self._context.restart_policy
        # The control plans it again, at once where it served well.
        if spans_neurons(self.spec):
            if served_s >= policy.healthy_after_s:
                return None
            policy = NO_RESTARTS
        delay_s = self.failed(failure, served_s, policy)
        self._context.on_change()
        return delay_s
