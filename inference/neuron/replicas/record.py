"""The record of one replica: its status and transitions, its loaded model, its statistics.

Any thread may read and write; nothing blocks. Statuses and their legal moves are those of
``inference.protocol.heartbeat``. Knows nothing of how engines are started and ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from inference.neuron.errors import (
    IllegalTransitionError,
    RequestRefusedError,
    model_load_failed,
    model_loading,
    model_not_loaded,
    model_recovering,
)
from inference.neuron.loads.watch import LoadWatch
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.retries import RestartPolicy, waits_for_time
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
from inference.protocol.load_progress import LOADED, LoadFailure, LoadProgress, LoadStage
from inference.protocol.load_report import AsleepBytes, LoadReport


class ReplicaRecord:
    def __init__(
        self,
        model: str,
        *,
        recovering: bool,
        num_failed_loads: int = 0,
        last_used_unix_s: float | None = None,
    ) -> None:
        """``num_failed_loads``: by this spec, in a row, before this one."""
        self._model = model
        self._changed = threading.Condition()
        self._status = ReplicaStatus.RECOVERING if recovering else ReplicaStatus.LOADING
        self._is_first_load = not recovering
        self._since_unix_s = time.time()
        self._engine: EngineProcess | None = None
        self._text: ModelText | None = None
        self._progress: LoadProgress | None = None
        self._engine_since_unix_s: float | None = None
        self._stage_since_unix_s: float | None = None
        self._failure: LoadFailure | None = None
        self._sleep_refusal: SleepRefusal | None = None
        self._stats: EngineStats | None = None
        self._last_used_unix_s = last_used_unix_s
        self._asleep: AsleepBytes | None = None
        self._num_restarts = 0
        self._num_failed_loads = num_failed_loads
        self._num_quick_failures = 0
        self._is_gone = False
        self._has_improved = False
        """Something has changed since it failed that the next load may profit from."""
        self._watch = LoadWatch()

    @property
    def status(self) -> ReplicaStatus:
        return self._status

    @property
    def is_gone(self) -> bool:
        return self._is_gone

    def mark_gone(self) -> None:
        """Records that the replica's thread has ended, or is given up."""
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()

    def wait_gone(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_gone, timeout_s)

    def wait_left(self, timeout_s: float | None = None) -> bool:
        """Waits until it is asleep or gone. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_gone or self._status is ReplicaStatus.ASLEEP, timeout_s
            )

    @property
    def num_failed_loads(self) -> int:
        return self._num_failed_loads

    @property
    def unchanged_failure(self) -> LoadFailure | None:
        """The failure of its last load where the next one would fail again: nothing has changed
        since. Also ``None`` where time alone may let the next one succeed."""
        with self._changed:
            return self._failure if self._is_unchanged() else None

    def improve(self) -> None:
        with self._changed:
            self._has_improved = True

    @property
    def last_used_unix_s(self) -> float | None:
        with self._changed:
            return self._last_used_unix_s

    @property
    def is_persisted(self) -> bool:
        """Whether the neuron's next instance loads it again: not after an unload or a refused load,
        nor if it sleeps: the host's memory goes with the engine."""
        if self._status is ReplicaStatus.FAILED:
            return not self._is_first_load
        return self._status not in (ReplicaStatus.DRAINING, ReplicaStatus.ASLEEP)

    def state(
        self, spec: LoadSpec, devices: Sequence[str] = (), kept_bytes: int | None = None
    ) -> ReplicaState:
        """``devices``: where it is going; ``kept_bytes``: what the neuron keeps for it there."""
        with self._changed:
            is_loading = self._status in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING)
            report = (
                None if self._text is None else _with_live_words(self._text.report, self._stats)
            )
            asleep = self._asleep if self._status is ReplicaStatus.ASLEEP else None
            return ReplicaState(
                model=spec.model,
                job_id=spec.job_id,
                status=self._status,
                since_unix_s=self._since_unix_s,
                spec_digest=spec_digest(spec),
                order=spec.order,
                devices=list(devices) if report is None else devices_of(report),
                memory_bytes=_memory_bytes(report, kept_bytes)
                if asleep is None
                else asleep.device_bytes,
                host_memory_bytes=0 if asleep is None else asleep.host_bytes,
                engine_since_unix_s=self._engine_since_unix_s if is_loading else None,
                stage_since_unix_s=self._stage_since_unix_s if is_loading else None,
                progress=self._progress if is_loading else _progress_at_rest(self._status),
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
                is_unchanged=self._is_unchanged(),
                last_used_unix_s=self._last_used_unix_s,
            )

    def take_request(self) -> tuple[EngineProcess, ModelText]:
        """The engine and text for a new request. Raises ``RequestRefusedError`` unless the model is
        ready."""
        with self._changed:
            if self._status is ReplicaStatus.READY and self._engine and self._text:
                self._last_used_unix_s = time.time()
                return self._engine, self._text
            raise RequestRefusedError(self._refusal())

    def begin_draining(self, only_if: Callable[[ReplicaStatus], bool] | None = None) -> bool:
        """False when it has begun already, or ``only_if`` is false: no request comes in between."""
        with self._changed:
            if self._status is ReplicaStatus.DRAINING:
                return False
            if only_if is not None and not only_if(self._status):
                return False
            self._move_to(ReplicaStatus.DRAINING)
            return True

    def engine_started(self) -> None:
        self.progressed(LoadProgress(stage=LoadStage.STARTING))

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

    def stall(self, now_s: float, limit_s: float) -> tuple[float, LoadFailure] | None:
        """Returns for how many seconds its load has made no progress, and the failure; ``None``
        within the limit. Call regularly."""
        with self._changed:
            stalled_s = self._watch.check(now_s)
            return (stalled_s, self._watch.failure(stalled_s)) if stalled_s > limit_s else None

    def give_up(self, failure: LoadFailure) -> None:
        with self._changed:
            self._watch.stop()
            self._failure = failure
            self._move_to(ReplicaStatus.FAILED)

    def engine_loaded(self, engine: EngineProcess, text: ModelText) -> None:
        with self._changed:
            self._watch.stop()
            self._engine, self._text = engine, text
            self._failure = None
            self._is_first_load = False
            self._num_failed_loads = 0
            if self._status is not ReplicaStatus.DRAINING:
                self._move_to(ReplicaStatus.READY)

    @property
    def may_sleep_as(self) -> AsleepBytes | None:
        """Memory that it would hold asleep; ``None``: it cannot sleep, or is not awake."""
        with self._changed:
            if self._status is not ReplicaStatus.READY or self._text is None:
                return None
            return self._text.report.asleep

    def sleep_refused(self, job_id: str, why: str) -> None:
        failure = LoadFailure(code="cannot_sleep", message=f"It serves on: {why}")
        with self._changed:
            self._sleep_refusal = SleepRefusal(
                job_id=job_id, failure=failure, at_unix_s=time.time()
            )

    def fell_asleep(self, held: AsleepBytes) -> None:
        with self._changed:
            self._asleep, self._stats = held, None
            self._move_to(ReplicaStatus.ASLEEP)

    def begin_waking(self) -> bool:
        """``False``: it does not sleep."""
        with self._changed:
            if self._status is not ReplicaStatus.ASLEEP:
                return False
            self._failure = None
            self._progress = LoadProgress(stage=LoadStage.WAKING)
            self._move_to(ReplicaStatus.LOADING)
            return True

    def sleeps_on(self, failure: LoadFailure) -> None:
        """Returns to sleep: it could not be woken now."""
        with self._changed:
            if self._status is ReplicaStatus.LOADING:
                self._failure = failure
                self._move_to(ReplicaStatus.ASLEEP)

    def woke(self) -> None:
        with self._changed:
            self._asleep = None
            if self._status is ReplicaStatus.LOADING:
                self._move_to(ReplicaStatus.READY)

    def idled(self, stats: EngineStats) -> None:
        with self._changed:
            self._stats = stats

    def worked(self, stats: EngineStats) -> None:
        with self._changed:
            self._stats = stats
            self._last_used_unix_s = time.time()

    def engine_ended(self, *, is_wanted: bool) -> None:
        with self._changed:
            self._engine = self._stats = self._asleep = self._engine_since_unix_s = None
            if self._status is ReplicaStatus.READY and not is_wanted:
                self._move_to(ReplicaStatus.RECOVERING)

    def failed(self, failure: LoadFailure, served_s: float, policy: RestartPolicy) -> float | None:
        """An engine ended by itself, ``served_s`` after it had loaded. Seconds until the next is to
        start; ``None``: there is none."""
        with self._changed:
            self._watch.stop()
            if served_s >= policy.healthy_after_s:
                self._num_quick_failures = 0
            self._num_quick_failures += 1
            delay_s = policy.delay_s(self._num_quick_failures)
            # One that was to wake is loaded again: it has been loaded once.
            is_refused = self._status is ReplicaStatus.LOADING and self._is_first_load
            if is_refused or delay_s is None:
                self._failure = self._final_failure(failure)
                self._move_to(ReplicaStatus.FAILED)
                return None
            self._num_restarts += 1
            return delay_s

    def _final_failure(self, last: LoadFailure) -> LoadFailure:
        if self._is_first_load:
            return last
        return LoadFailure(
            code=last.code,
            message=f"gave up after {self._num_quick_failures} failures in a row: {last.message}",
        )

    def _refusal(self) -> Failure:
        match self._status:
            case ReplicaStatus.LOADING:
                return model_loading(self._model)
            case ReplicaStatus.FAILED:
                reason = self._failure.message if self._failure else "the reason is not known"
                return model_load_failed(self._model, reason)
            case ReplicaStatus.DRAINING | ReplicaStatus.ASLEEP:
                return model_not_loaded(self._model)
            case _:
                return model_recovering(self._model)

    def _is_unchanged(self) -> bool:
        """Holds the lock already."""
        failure = self._failure
        if self._status is not ReplicaStatus.FAILED or failure is None or self._has_improved:
            return False
        return not waits_for_time(failure, self._num_failed_loads)

    def _move_to(self, status: ReplicaStatus) -> None:
        """Holds the lock already. Raises ``IllegalTransitionError``."""
        if status not in REPLICA_TRANSITIONS[self._status]:
            raise IllegalTransitionError(f"{self._model}: {self._status} -> {status}")
        self._status = status
        self._since_unix_s = time.time()
        self._changed.notify_all()
        if status is ReplicaStatus.FAILED:
            self._num_failed_loads += 1
            self._has_improved = False


def _with_live_words(report: LoadReport, stats: EngineStats | None) -> LoadReport:
    """The load's report with the warnings that came since, and the drafts that were chosen."""
    if stats is None or not (stats.warnings or stats.speculation):
        return report
    return msgspec.structs.replace(
        report,
        warnings=[*report.warnings, *stats.warnings],
        speculation="; ".join(filter(None, (report.speculation, stats.speculation))),
    )


def devices_of(report: LoadReport) -> list[str]:
    """The neuron's devices that hold the model; of ranks the first one's."""
    return [one.device for one in report.stage_memory] or [report.device]


def _memory_bytes(report: LoadReport | None, kept_bytes: int | None) -> int | None:
    """Memory that it uses of its neuron, or that is reserved for it. An engine that did not measure
    reports 0."""
    if report is not None and report.actual_bytes:
        return report.process_bytes + report.actual_bytes
    return kept_bytes or None


def _progress_at_rest(status: ReplicaStatus) -> LoadProgress | None:
    return LOADED if status is ReplicaStatus.READY else None
