"""The state of one replica: its status and moves, its loaded model, its statistics, its report.

One lock, ``_changed``, guards every attribute of a replica; a single attribute may be read without
it. It is reentrant. The request table and the queue of loads may be called while it is held, as
they call nothing back under their own locks. Nothing that blocks is: no devices are measured under
it, no messages sent, no threads joined.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from inference.neuron import errors
from inference.neuron.loads.admission import LoadAdmission
from inference.neuron.loads.files import FileChecker
from inference.neuron.loads.load import Load
from inference.neuron.loads.queue import LoadQueue
from inference.neuron.loads.watch import LoadWatch
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.retries import RestartPolicy, waits_for_time
from inference.neuron.requests.request_table import AddressedEvent, RequestTable
from inference.neuron.requests.starter import PreparingMarks
from inference.neuron.text.model_text import ModelText
from inference.protocol.engine import EngineStats
from inference.protocol.events import Failure
from inference.protocol.heartbeat import (
    REPLICA_TRANSITIONS,
    ReplicaState,
    ReplicaStatus,
    SleepRefusal,
)
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import (
    LOADED,
    AsleepBytes,
    LoadFailure,
    LoadProgress,
    LoadReport,
    LoadStage,
)
from inference.sandbox.pool import WorkerPool
from inference.supervised_threads import SupervisedThread

REFUSALS = {
    ReplicaStatus.LOADING: "model_loading",
    ReplicaStatus.DRAINING: "model_not_loaded",
    ReplicaStatus.ASLEEP: "model_not_loaded",
    ReplicaStatus.RECOVERING: "recovering",
    ReplicaStatus.READY: "recovering",
}
"""READY: its engine has just ended with the neuron."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    table: RequestTable
    publish: Callable[[list[AddressedEvent]], None]
    start_engine: Callable[[LoadSpec], EngineProcess]
    workers: WorkerPool
    marks: PreparingMarks
    loads: LoadQueue
    admission: LoadAdmission
    checker: FileChecker
    discard: Callable[[Load], None]
    """Called for a load that can never succeed: deletes its downloads."""
    on_change: Callable[[], None]
    on_gone: Callable[[Load], None]
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    load_stall_limit_s: float | None = None
    """``None``: no limit."""
    clock: Callable[[], float] = time.monotonic
    silence_limit_s: float | None = None
    """``None``: no limit."""


class EngineOwner:
    """Starts engines in a thread of its own, one after the other."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._engine: EngineProcess | None = None
        self._end_asked = threading.Event()

    def stop(self) -> None:
        """Returns at once."""
        self._end_asked.set()
        self._context.loads.wake()
        if (engine := self._engine) is not None:
            engine.stop()

    def kill(self) -> None:
        if (engine := self._engine) is not None:
            engine.kill()


class ReplicaRecord:
    def __init__(
        self, spec: LoadSpec, *, recovering: bool = False, num_failed_loads: int = 0
    ) -> None:
        """``num_failed_loads``: by this spec, in a row, before this one."""
        self.spec = spec
        self.load = Load(spec)
        self._changed = threading.Condition()
        self.status = ReplicaStatus.RECOVERING if recovering else ReplicaStatus.LOADING
        self._since_unix_s = time.time()
        self.is_gone = False
        self._is_abandoned = False
        """Its thread hangs and is given up: whatever it does later no longer counts."""
        self._engine: EngineProcess | None = None
        self._text: ModelText | None = None
        self._ready_s: float | None = None
        self._drain_by_s: float | None = None
        """Its engine ends, or falls asleep, once its requests are done, or at this time."""
        self._turns_by_s: float | None = None
        """Set while its engine falls asleep or wakes: it sends nothing then."""
        self._is_falling_asleep = False
        self._waker: SupervisedThread | None = None
        self._wanted = spec
        self._stall: LoadFailure | None = None
        self._load_failure: LoadFailure | None = None
        self._fault: Failure | None = None
        self._is_first_load = not recovering
        self._progress: LoadProgress | None = None
        self._engine_since_unix_s: float | None = None
        self._stage_since_unix_s: float | None = None
        self._failure: LoadFailure | None = None
        self._sleep_refusal: SleepRefusal | None = None
        self._stats: EngineStats | None = None
        self._last_used_unix_s = spec.last_used_unix_s
        self._asleep: AsleepBytes | None = None
        self._num_restarts = 0
        self._num_failed_loads = num_failed_loads
        self._num_quick_failures = 0
        self._has_improved = False
        self._watch = LoadWatch()

    def wait_gone(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_gone, timeout_s)

    def wait_left(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self.is_gone or self.status is ReplicaStatus.ASLEEP, timeout_s
            )

    def num_failed_loads_by(self, spec: LoadSpec) -> int:
        return self._num_failed_loads if spec_digest(self.spec) == spec_digest(spec) else 0

    def adopt_job(self, spec: LoadSpec) -> None:
        with self._changed:
            self.spec = msgspec.structs.replace(self.spec, job_id=spec.job_id, order=spec.order)

    @property
    def is_resting(self) -> bool:
        return self._is_falling_asleep or self.status is ReplicaStatus.ASLEEP

    @property
    def unchanged_failure(self) -> LoadFailure | None:
        """``None`` where the next load may succeed, if only by time."""
        with self._changed:
            failure = self._failure
            if self.status is not ReplicaStatus.FAILED or failure is None or self._has_improved:
                return None
            return None if waits_for_time(failure, self._num_failed_loads) else failure

    @property
    def persisted_spec(self) -> LoadSpec | None:
        """``None`` after an unload or a refused load; asleep, as the host's memory goes with the
        engine; and with stages on other neurons, whose links end with it. ``evict`` is empty: those
        replicas must not leave once more."""
        with self._changed:
            if self.status is ReplicaStatus.FAILED:
                is_persisted = not self._is_first_load
            else:
                is_persisted = self.status not in (ReplicaStatus.DRAINING, ReplicaStatus.ASLEEP)
            if not is_persisted or spans_neurons(self.spec):
                return None
            return msgspec.structs.replace(
                self.spec, evict=[], last_used_unix_s=self._last_used_unix_s
            )

    @property
    def may_sleep_as(self) -> AsleepBytes | None:
        """``None``: it cannot sleep, or is not awake."""
        with self._changed:
            if self.status is not ReplicaStatus.READY or self._text is None:
                return None
            return self._text.report.asleep

    def state(self, kept_bytes: int | None = None) -> ReplicaState:
        with self._changed:
            spec, is_asleep = self.spec, self.status is ReplicaStatus.ASLEEP
            is_loading = self.status in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
            report = None if self._text is None else _with_news(self._text.report, self._stats)
            asleep = self._asleep if is_asleep else None
            if is_loading:
                progress = self._progress
            else:
                progress = LOADED if self.status is ReplicaStatus.READY else None
            return ReplicaState(
                model=spec.model,
                job_id=spec.job_id,
                status=self.status,
                since_unix_s=self._since_unix_s,
                spec_digest=spec_digest(spec),
                order=spec.order,
                devices=list(self.load.devices) if report is None else _devices_of(report),
                memory_bytes=_memory_bytes(report, asleep, kept_bytes),
                host_memory_bytes=0 if asleep is None else asleep.host_bytes,
                engine_since_unix_s=self._engine_since_unix_s if is_loading else None,
                stage_since_unix_s=self._stage_since_unix_s if is_loading else None,
                progress=progress,
                report=report,
                capabilities=self._text.capabilities if self._text is not None else [],
                max_output_tokens=spec.max_output_tokens,
                max_in_flight=spec.max_concurrent_sequences,
                max_queue_depth=spec.max_queue_depth,
                failure=self._failure,
                sleep_refusal=self._sleep_refusal,
                stats=self._stats,
                num_restarts=self._num_restarts,
                num_failed_loads=self._num_failed_loads,
                is_unchanged=self.unchanged_failure is not None,
                last_used_unix_s=self._last_used_unix_s,
            )

    def take_request(self) -> tuple[EngineProcess, ModelText]:
        """Raises ``RequestRefusedError`` unless the model is ready."""
        with self._changed:
            if self.status is ReplicaStatus.READY and self._engine and self._text:
                self._last_used_unix_s = time.time()
                return self._engine, self._text
            if self.status is ReplicaStatus.FAILED:
                reason = self._failure.message if self._failure else "the reason is not known"
                message = f"model {self.spec.model!r} could not be loaded: {reason}"
                raise errors.refused("model_load_failed", message, param=None)
            failure = errors.of_model(REFUSALS[self.status], self.spec.model)
            raise errors.RequestRefusedError(failure)

    def progressed(self, progress: LoadProgress) -> None:
        with self._changed:
            if self._progress is None or self._progress.stage is not progress.stage:
                self._stage_since_unix_s = time.time()
            self._progress = progress
            self._watch.progressed(progress)
            if progress.stage in (LoadStage.QUEUED, LoadStage.DOWNLOADING):
                self._engine_since_unix_s = None
            elif self._engine_since_unix_s is None:
                self._engine_since_unix_s = time.time()

    def give_up(self, failure: LoadFailure) -> None:
        with self._changed:
            self._watch.stop()
            self._failure = failure
            self._move_to(ReplicaStatus.FAILED)

    def engine_loaded(self, text: ModelText) -> None:
        with self._changed:
            self._watch.stop()
            self._text = text
            self._failure = None
            self._is_first_load = False
            self._num_failed_loads = 0
            if self.status is not ReplicaStatus.DRAINING:
                self._move_to(ReplicaStatus.READY)

    def reported(self, stats: EngineStats, *, worked: bool) -> None:
        with self._changed:
            self._stats = stats
            if worked:
                self._last_used_unix_s = time.time()

    def failed(self, failure: LoadFailure, served_s: float, policy: RestartPolicy) -> float | None:
        """Returns the seconds until the next start; ``None``: there is none."""
        with self._changed:
            self._watch.stop()
            if served_s >= policy.healthy_after_s:
                self._num_quick_failures = 0
            self._num_quick_failures += 1
            delay_s = policy.delay_s(self._num_quick_failures)
            if self._is_first_load and self.status is ReplicaStatus.LOADING:
                delay_s = None  # a model that wakes has been loaded before, and is restarted
            if delay_s is not None:
                self._num_restarts += 1
                return delay_s
            if not self._is_first_load:
                gave_up = f"gave up after {self._num_quick_failures} failures in a row"
                failure = LoadFailure(code=failure.code, message=f"{gave_up}: {failure.message}")
            self.give_up(failure)
            return None

    def _move_to(self, status: ReplicaStatus) -> None:
        """The caller holds the lock."""
        if status not in REPLICA_TRANSITIONS[self.status]:
            raise errors.IllegalTransitionError(f"{self.spec.model}: {self.status} -> {status}")
        self.status = status
        self._since_unix_s = time.time()
        self._changed.notify_all()
        if status is ReplicaStatus.FAILED:
            self._num_failed_loads += 1
            self._has_improved = False


def spans_neurons(spec: LoadSpec) -> bool:
    return any(stage.neuron for stage in spec.stages)


def _with_news(report: LoadReport, stats: EngineStats | None) -> LoadReport:
    if stats is None or not (stats.warnings or stats.speculation):
        return report
    return msgspec.structs.replace(
        report,
        warnings=[*report.warnings, *stats.warnings],
        speculation="; ".join(filter(None, (report.speculation, stats.speculation))),
    )


def _devices_of(report: LoadReport) -> list[str]:
    return [one.device for one in report.stage_memory] or [report.device]


def _memory_bytes(
    report: LoadReport | None, asleep: AsleepBytes | None, kept_bytes: int | None
) -> int | None:
    """An engine that did not measure reports 0."""
    if asleep is not None:
        return asleep.device_bytes
    if report is not None and report.actual_bytes:
        return report.process_bytes + report.actual_bytes
    return kept_bytes or None
