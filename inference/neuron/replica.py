"""One model loaded on this neuron: its engine process, its lifecycle, its watchdog.

    thread: start engine ─▶ messages … end of file ─▶ fail what it ran ─▶ wait ─▶ start again

One thread per replica supervises: it reads what the engine says and starts the next engine when one
dies. Other threads ask for work to be drained or stopped and read the state. Statuses and their
legal moves are those of ``inference.protocol.heartbeat``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from inference.neuron.engine_process import EngineProcess
from inference.neuron.errors import (
    IllegalTransitionError,
    RequestRefusedError,
    engine_crashed,
    engine_faulted,
    engine_hung,
    model_load_failed,
    model_loading,
    model_not_loaded,
    model_recovering,
)
from inference.neuron.model_text import ModelText
from inference.neuron.request_table import AddressedEvent, RequestTable
from inference.neuron.restart_policy import RestartPolicy
from inference.neuron.silence import Silence
from inference.protocol.engine import (
    EngineFaulted,
    EngineMessage,
    EngineStats,
    Idle,
    Loaded,
    LoadFailedMessage,
    LoadProgressed,
    StepOutputs,
)
from inference.protocol.events import Failure
from inference.protocol.heartbeat import REPLICA_TRANSITIONS, ReplicaState, ReplicaStatus
from inference.protocol.load import (
    LoadFailure,
    LoadProgress,
    LoadReport,
    LoadSpec,
    LoadStage,
)
from inference.text.errors import TextError

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 120.0
"""How long an unload waits for requests in flight before it fails them."""
STOP_GRACE_S = 2.0
"""How long an engine that was told to stop may take before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """What a replica needs of the neuron it lives on."""

    table: RequestTable
    publish: Callable[[list[AddressedEvent]], None]
    start_engine: Callable[[LoadSpec], EngineProcess]
    on_change: Callable[[], None]
    """The status moved. Called without locks held."""
    on_gone: Callable[[Replica], None]
    """Unloaded or stopped: the engine process has ended for good."""
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    silence_limit_s: float | None = None
    """How long an engine that has loaded may say nothing until it is killed; ``None``: for ever."""


class Replica:
    def __init__(
        self,
        spec: LoadSpec,
        context: ReplicaContext,
        *,
        recovering: bool = False,
        predecessor: Replica | None = None,
    ) -> None:
        """``recovering``: an earlier life of the neuron had it loaded. ``predecessor``: a replica
        of the same model that must be gone before this one's engine starts."""
        self.spec = spec
        self._context = context
        self._predecessor = predecessor
        self._lock = threading.Lock()
        self._status = ReplicaStatus.RECOVERING if recovering else ReplicaStatus.LOADING
        self._is_first_load = not recovering
        self._since_unix_s = time.time()
        self._engine: EngineProcess | None = None
        self._text: ModelText | None = None
        self._progress: LoadProgress | None = None
        self._failure: LoadFailure | None = None
        self._fault: Failure | None = None
        """Why the engine ended, where that is known."""
        self._silence: Silence | None = None
        """Of an engine that has loaded."""
        self._stats: EngineStats | None = None
        self._last_used_unix_s: float | None = None
        self._num_restarts = 0
        self._num_quick_failures = 0
        self._drain_deadline_s: float | None = None
        self._stop_sent_s: float | None = None
        self._end_asked = threading.Event()
        self._gone = threading.Event()
        self._thread = threading.Thread(
            target=self._supervise, name=f"replica-{spec.model}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def status(self) -> ReplicaStatus:
        return self._status

    @property
    def should_survive(self) -> bool:
        """Whether the neuron's next life loads it again: not after an unload or a refused load."""
        if self._status is ReplicaStatus.FAILED:
            return not self._is_first_load
        return self._status is not ReplicaStatus.DRAINING

    def state(self) -> ReplicaState:
        with self._lock:
            is_loading = self._status in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
            return ReplicaState(
                model=self.spec.model,
                job_id=self.spec.job_id,
                status=self._status,
                since_unix_s=self._since_unix_s,
                progress=self._progress if is_loading else None,
                report=self._report(),
                capabilities=self._text.capabilities if self._text is not None else [],
                max_output_tokens=self.spec.max_output_tokens,
                failure=self._failure,
                stats=self._stats,
                num_restarts=self._num_restarts,
                last_used_unix_s=self._last_used_unix_s,
            )

    def adopt_job(self, job_id: str) -> None:
        """A second load job asks for what is here already: it is this replica's from now on."""
        self.spec = msgspec.structs.replace(self.spec, job_id=job_id)

    def take_request(self) -> tuple[EngineProcess, ModelText]:
        """What runs a new request. Raises ``RequestRefusedError`` unless the model is ready."""
        with self._lock:
            self._last_used_unix_s = time.time()
            if self._status is ReplicaStatus.READY and self._engine and self._text:
                return self._engine, self._text
            status, failure = self._status, self._failure
        match status:
            case ReplicaStatus.LOADING:
                raise RequestRefusedError(model_loading(self.spec.model))
            case ReplicaStatus.FAILED:
                reason = failure.message if failure else "the reason is not known"
                raise RequestRefusedError(model_load_failed(self.spec.model, reason))
            case ReplicaStatus.DRAINING:
                raise RequestRefusedError(model_not_loaded(self.spec.model))
            case _:
                raise RequestRefusedError(model_recovering(self.spec.model))

    def drain(self) -> None:
        """Unload: take nothing new, wait for what runs, end the engine. Returns at once."""
        with self._lock:
            if self._status is ReplicaStatus.DRAINING:
                return
            self._move_to(ReplicaStatus.DRAINING)
            self._drain_deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        self._end_asked.set()
        self._context.on_change()
        if self._gone.is_set():  # it had failed: there is no thread to say so
            self._context.on_gone(self)
        else:
            self.tick()

    def tick(self) -> None:
        """Once a second: ends a drained engine, kills one that hangs or does not stop when told."""
        now_s = time.monotonic()
        with self._lock:
            engine, drain_deadline_s = self._engine, self._drain_deadline_s
            stop_sent_s = self._stop_sent_s
            silent_s = 0.0 if self._silence is None else self._silence.look(now_s)
        if engine is None:
            return
        limit_s = self._context.silence_limit_s
        if limit_s is not None and silent_s > limit_s:
            self._give_up(engine, silent_s)
        elif stop_sent_s is not None:
            if now_s - stop_sent_s > STOP_GRACE_S:
                engine.kill()
        elif drain_deadline_s is not None and (
            now_s > drain_deadline_s or self._context.table.count(engine) == 0
        ):
            self._stop_engine(engine)

    def stop(self) -> None:
        """The neuron is ending: the engine is told to stop at once. Returns at once."""
        self._end_asked.set()
        with self._lock:
            engine = self._engine
        if engine is not None:
            self._stop_engine(engine)

    def kill(self) -> None:
        with self._lock:
            engine = self._engine
        if engine is not None:
            engine.kill()

    def wait_gone(self, timeout_s: float | None = None) -> bool:
        return self._gone.wait(timeout_s)

    def _stop_engine(self, engine: EngineProcess) -> None:
        with self._lock:
            self._stop_sent_s = time.monotonic()
        engine.stop()

    def _give_up(self, engine: EngineProcess, silent_s: float) -> None:
        log.error("replica %s: its engine has said nothing for %.0f s", self.spec.model, silent_s)
        with self._lock:
            self._silence = None
            self._fault = engine_hung(self.spec.model)
        engine.abandon()

    # The supervising thread.

    def _supervise(self) -> None:
        if self._predecessor is not None:
            self._predecessor.wait_gone()
            self._predecessor = None
        try:
            while not self._end_asked.is_set():
                delay_s = self._run_engine()
                if delay_s is None:
                    break
                self._end_asked.wait(delay_s)
        except Exception:
            log.exception("replica %s: its supervisor broke", self.spec.model)
            self.kill()
        if self._status is not ReplicaStatus.FAILED:
            self._context.on_gone(self)
        self._gone.set()

    def _run_engine(self) -> float | None:
        """One life of one engine. Seconds until the next; ``None``: there is none."""
        try:
            engine = self._context.start_engine(self.spec)
        except OSError as error:
            return self._next_start(0.0, f"could not be started: {error}", None)
        with self._lock:
            self._engine = engine
            self._fault = None
            self._progress = LoadProgress(stage=LoadStage.STARTING)
        if self._end_asked.is_set():  # asked between the check and the start
            self._stop_engine(engine)
        load_failure: LoadFailure | None = None
        ready_s: float | None = None
        try:
            for message in engine.messages():
                match message:
                    case LoadFailedMessage(failure=failure):
                        load_failure = failure
                    case Loaded(report=report):
                        load_failure = self._become_ready(report)
                        ready_s = time.monotonic() if load_failure is None else None
                    case _:
                        self._on_message(engine, message)
                if load_failure is not None:
                    engine.stop()
        except Exception:
            log.exception("replica %s: bad message from its engine", self.spec.model)
            engine.kill()
        served_s = 0.0 if ready_s is None else time.monotonic() - ready_s
        return self._after_engine(engine, served_s, load_failure)

    def _become_ready(self, report: LoadReport) -> LoadFailure | None:
        try:
            text = ModelText.load(self.spec, report)
        except TextError as error:
            return LoadFailure(code="bad_file", message=str(error))
        with self._lock:
            self._text = text
            self._failure = None
            self._silence = Silence()
            self._is_first_load = False
            if self._status is not ReplicaStatus.DRAINING:
                self._move_to(ReplicaStatus.READY)
        log.info("replica %s: ready after %.1f s", self.spec.model, report.load_seconds)
        self._context.on_change()
        return None

    def _on_message(self, engine: EngineProcess, message: EngineMessage) -> None:
        if self._silence is not None:
            self._silence.end()
        match message:
            case StepOutputs(outputs=outputs, stats=stats):
                applied = self._context.table.apply(outputs)
                for sequence_id in applied.ended_early:
                    engine.cancel(sequence_id)
                self._context.publish(applied.events)
                with self._lock:
                    self._stats = stats
                    self._last_used_unix_s = time.time()
            case Idle(stats=stats):
                with self._lock:
                    self._stats = stats
            case LoadProgressed(progress=progress):
                with self._lock:
                    self._progress = progress
            case EngineFaulted(code=code, message=text):
                self._fault = engine_faulted(self.spec.model, code, text)
        if self._drain_deadline_s is not None:
            self.tick()

    def _after_engine(
        self, engine: EngineProcess, served_s: float, load_failure: LoadFailure | None
    ) -> float | None:
        with self._lock:
            self._engine = None
            self._stop_sent_s = None
            self._silence = None
            self._stats = None
            if self._status is ReplicaStatus.READY and not self._end_asked.is_set():
                self._move_to(ReplicaStatus.RECOVERING)
        blame = model_not_loaded if self._end_asked.is_set() else engine_crashed
        failure = self._fault or blame(self.spec.model)
        self._context.publish(self._context.table.fail_engine(engine, failure))
        how = engine.reap()
        if self._end_asked.is_set():
            log.info("replica %s: engine process %d %s", self.spec.model, engine.pid, how)
            return None
        return self._next_start(served_s, how, load_failure)

    def _next_start(
        self, served_s: float, how: str, load_failure: LoadFailure | None
    ) -> float | None:
        policy = self._context.restart_policy
        log.error("replica %s: the engine process %s", self.spec.model, how)
        if load_failure is None:
            code = self._fault.code if self._fault is not None else "engine_crashed"
            load_failure = LoadFailure(code=code, message=f"the engine process {how}")
        with self._lock:
            if served_s >= policy.healthy_after_s:
                self._num_quick_failures = 0
            self._num_quick_failures += 1
            delay_s = policy.delay_s(self._num_quick_failures)
            if self._status is ReplicaStatus.LOADING or delay_s is None:
                delay_s = None
                self._failure = self._final_failure(load_failure)
                self._move_to(ReplicaStatus.FAILED)
            else:
                self._num_restarts += 1
        self._context.on_change()
        return delay_s

    def _final_failure(self, last: LoadFailure) -> LoadFailure:
        if self._status is ReplicaStatus.LOADING:
            return last
        return LoadFailure(
            code=last.code,
            message=f"gave up after {self._num_quick_failures} failures in a row: {last.message}",
        )

    def _move_to(self, status: ReplicaStatus) -> None:
        """Holds the lock already. Raises ``IllegalTransitionError``."""
        if status not in REPLICA_TRANSITIONS[self._status]:
            raise IllegalTransitionError(f"{self.spec.model}: {self._status} -> {status}")
        self._status = status
        self._since_unix_s = time.time()

    def _report(self) -> LoadReport | None:
        return self._text.report if self._text is not None else None
