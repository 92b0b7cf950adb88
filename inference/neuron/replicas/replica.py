"""One model loaded on this neuron, from the load job to the unload.

    thread: admitted ─▶ start engine ─▶ follow it … end of file ─▶ fail what it ran ─▶ wait ─┐
                             ▲                                                              │
                             └──────────────────────────────────────────────────────────────┘

One thread per replica supervises: it follows one engine run after the other. ``ReplicaRecord`` has
the replica's state, ``EngineRun`` runs one engine process, ``SleepController`` puts it to sleep and
wakes it; other threads ask for work to be drained or stopped.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import msgspec

from inference.loading.sources.sources import local_identity
from inference.neuron.errors import EngineGoneError, LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.loads.watch import GRACE_S
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.engine_run import EngineEnd, EngineRun
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.replicas.sleep_controller import SleepController
from inference.protocol.engine import DropAdapter
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_progress import TOO_LARGE, LoadFailure
from inference.protocol.load_report import AsleepBytes, LoadReport
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


DRAIN_TIMEOUT_S = 120.0
"""How long an unload waits for requests in flight before it fails them."""
NO_RESTARTS = RestartPolicy(max_quick_failures=0)


class Replica:
    def __init__(
        self,
        spec: LoadSpec,
        context: ReplicaContext,
        *,
        recovering: bool = False,
        predecessor: Replica | None = None,
    ) -> None:
        """``recovering``: a previous instance of the neuron had it loaded. ``predecessor``: a
        replica of the same model that must be gone before this one's engine starts."""
        self.spec = spec
        self._context = context
        self._predecessor = predecessor
        self.load = Load(spec)
        """Its place in the queue of loads, and its claim on memory."""
        self._record = ReplicaRecord(
            spec.model,
            recovering=recovering,
            num_failed_loads=0 if predecessor is None else predecessor.num_failed_loads_by(spec),
            last_used_unix_s=spec.last_used_unix_s,
        )
        self.take_request = self._record.take_request
        self._run: EngineRun | None = None
        self._stall: LoadFailure | None = None
        self._abandoned = threading.Event()
        self._end_asked = threading.Event()
        self.wait_gone = self._record.wait_gone
        self.wait_left = self._record.wait_left
        self._sleep_controller = SleepController(
            self.load,
            self._record,
            context,
            self._end_asked,
            run=lambda: self._run,
            adopt_job=self.adopt_job,
        )
        self.wake = self._sleep_controller.wake
        name = f"replica-{spec.model}"
        self.start = SupervisedThread(self._supervise, name=name, restarts=False).start

    def refuse(self, failure: LoadFailure) -> None:
        """Instead of ``start``: it is not loaded, for that reason."""
        self.load.file_identity = local_identity(self.spec)
        self._record.give_up(failure)
        self._leave_loads()

    @property
    def status(self) -> ReplicaStatus:
        return self._record.status

    def num_failed_loads_by(self, spec: LoadSpec) -> int:
        """Returns how many loads have failed in a row by this spec; 0: the last was by another."""
        is_same = spec_digest(self.spec) == spec_digest(spec)
        return self._record.num_failed_loads if is_same else 0

    @property
    def unchanged_failure(self) -> LoadFailure | None:
        return self._record.unchanged_failure

    def improve(self) -> None:
        self._record.improve()
        self._context.on_change()

    @property
    def persisted_spec(self) -> LoadSpec | None:
        """The spec by which the neuron reloads it after a restart; ``None`` after an unload or a
        refused load, and with stages on other neurons, whose links end with it. Its ``evict`` is
        empty: those replicas must not leave once more."""
        if not self._record.is_persisted or spans_neurons(self.spec):
            return None
        last_used_unix_s = self._record.last_used_unix_s
        return msgspec.structs.replace(self.spec, evict=[], last_used_unix_s=last_used_unix_s)

    def keep_room(self) -> None:
        """Keeps the memory that it needs before ``start``, as far as that is known. A refusal is
        the start's to report."""
        with contextlib.suppress(LoadRefusedError):
            self._context.loads.accept(self.load)

    def state(self) -> ReplicaState:
        kept_bytes = self._context.loads.kept_bytes(self.load)
        return self._record.state(self.spec, self.load.devices, kept_bytes)

    def adopt_job(self, spec: LoadSpec) -> None:
        """Adopt a second load job for the same spec: this replica reports it from now on."""
        self.spec = msgspec.structs.replace(self.spec, job_id=spec.job_id, order=spec.order)

    def is_idle(self) -> bool:
        """Whether no request runs in it, is on its way to it, or waits for it to load."""
        return self._is_idle_as(self._record.status)

    def drop_adapter(self, name: str) -> None:
        if (run := self._run) is not None:
            with contextlib.suppress(EngineGoneError):  # and the adapter with it
                run.engine.send(DropAdapter(name=name))

    def drain(self, *, at_once: bool = False) -> None:
        """Unload: refuse new requests, finish running ones, or fail them ``at_once``, end the
        engine. A load is cancelled. Returns at once."""
        if self._sleep_controller.call_off() or self._record.begin_draining():
            self._drain()
        if at_once and (run := self._run) is not None:
            run.drain(time.monotonic())

    def drain_if_idle(self) -> bool:
        """``drain``, unless it has work again. One that is leaving already has none."""
        was_to_sleep = self._sleep_controller.call_off()
        if was_to_sleep or self._record.begin_draining(only_if=self._is_idle_as):
            self._drain()
        return self._record.status is ReplicaStatus.DRAINING

    def sleep(self, job_id: str) -> None:
        """Refuse new requests, finish running ones, fall asleep. Returns at once. If it cannot, it
        keeps serving, and its state reports that for the job."""
        if self._sleep_controller.fall_asleep():
            return
        if (why := self._sleep_controller.why_not_asleep()) is not None:
            log.warning("%s does not fall asleep: %s", self.spec.model, why)
            self._record.sleep_refused(job_id, why)
            self._context.on_change()

    @property
    def is_resting(self) -> bool:
        return self._sleep_controller.is_falling_asleep or self.status is ReplicaStatus.ASLEEP

    @property
    def may_sleep_as(self) -> AsleepBytes | None:
        return self._record.may_sleep_as

    def leave_if_idle(self, *, may_sleep: bool) -> bool:
        """Fall asleep or unload if nothing runs here: see ``Evictable``."""
        if may_sleep and self._sleep_controller.fall_asleep(only_if=self._is_idle_as):
            return True
        return self.drain_if_idle()

    def _is_idle_as(self, status: ReplicaStatus) -> bool:
        if status in (ReplicaStatus.FAILED, ReplicaStatus.DRAINING, ReplicaStatus.ASLEEP):
            return True
        has_work = self._context.table.has_work_for(self.spec.model)
        return status is ReplicaStatus.READY and not has_work

    def _drain(self) -> None:
        self._end_asked.set()
        self._context.loads.wake()
        self._context.on_change()
        run = self._run
        if self._record.is_gone:  # it had failed: its thread has ended and cannot report
            self._context.on_gone(self.load)
        elif run is not None:
            run.drain(time.monotonic() + DRAIN_TIMEOUT_S)

    def tick(self) -> None:
        """Called once a second: ends a drained engine, and kills one that hangs or does not stop
        when asked."""
        if (run := self._run) is not None:
            run.tick()
        limit_s = self._context.load_stall_limit_s
        if limit_s is not None and (stall := self._record.stall(self._context.clock(), limit_s)):
            self._end_stalled_load(*stall, limit_s)

    def _end_stalled_load(self, stalled_s: float, failure: LoadFailure, limit_s: float) -> None:
        """Ends the download or engine of a stalled load. A load whose own thread hangs is given up
        without that, so that later loads get their turn."""
        if self._stall is None:
            self._stall = failure
            log.error("replica %s: %s; it is ended", self.spec.model, failure.message)
            if (run := self._run) is not None:
                run.end_load(failure)
        elif stalled_s > limit_s + GRACE_S and not self._abandoned.is_set():
            self._abandoned.set()
            log.critical("replica %s: its thread hangs; it is given up", self.spec.model)
            self._record.give_up(failure)
            self._leave_loads()

    def stop(self) -> None:
        """The neuron is shutting down: ask the engine to stop at once. Returns at once."""
        self._end_asked.set()
        self._context.loads.wake()
        if (run := self._run) is not None:
            run.stop()

    def kill(self) -> None:
        if (run := self._run) is not None:
            run.engine.kill()

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
            if not self._abandoned.is_set():
                self._leave_loads()

    def _leave_loads(self) -> None:
        self._context.loads.release(self.load)
        if self.status is not ReplicaStatus.FAILED:
            self._context.on_gone(self.load)
        self._record.mark_gone()
        self._context.on_change()

    def _run_contained(self) -> float | None:
        """Does what ``_run_engine`` does. Whatever that raises counts as the end of an engine."""
        try:
            return self._run_engine()
        except BaseException:
            log.exception("replica %s: its supervisor broke", self.spec.model)
            if self._abandoned.is_set():
                return None
            run, self._run = self._run, None
            if run is not None:
                run.engine.kill()
                run.finish(is_wanted=self._end_asked.is_set())
            self._context.loads.engine_ended(self.load)
            return self._after_broken_supervisor()

    def _run_engine(self) -> float | None:
        """Runs one engine from start to end. Returns the seconds until the next; ``None``: there is
        none."""
        self._stall = None
        refusal: LoadFailure | None = None
        try:
            spec = self._engine_spec()
        except LoadRefusedError as refused:
            spec, refusal = None, refused.failure
        if self._abandoned.is_set():
            return None
        if spec is None:
            return None if refusal is None else self._after_refusal(refusal)
        try:
            engine = self._context.start_engine(spec)
        except OSError as error:
            return self._after_failed_start(error)
        self._context.loads.started(self.load, engine.pid)
        end = self._follow(
            EngineRun(
                engine,
                self.spec,
                self._record,
                self._context,
                self._loaded,
                self._sleep_controller.fell_asleep,
                self._sleep_controller.woke,
            )
        )
        if self._abandoned.is_set():
            return None
        was_resting = self._sleep_controller.engine_ended()
        self._context.loads.engine_ended(self.load)
        if self._end_asked.is_set() or was_resting:  # asleep it is as good as unloaded
            log.info("replica %s: engine process %d %s", self.spec.model, engine.pid, end.how)
            return None
        if end.is_refusal:
            return self._after_refusal(end.failure)
        return self._after_crash(end.failure, end.served_s, end.how)

    def _engine_spec(self) -> LoadSpec | None:
        """``None``: it was cancelled. Raises ``LoadRefusedError``."""
        if self.load.is_settled:
            return self._context.loads.begin_again(self.load)
        self._record.engine_started()
        self.load.file_identity = local_identity(self.spec)
        spec = self._context.admission.admit(self.load, self._is_cancelled, self._record.progressed)
        if spec is None and self._stall is not None:
            raise LoadRefusedError(self._stall)
        return spec

    def _is_cancelled(self) -> bool:
        return self._end_asked.is_set() or self._stall is not None

    def _follow(self, run: EngineRun) -> EngineEnd:
        self._run = run
        self._record.engine_started()
        if self._end_asked.is_set():  # asked between the check and the start
            run.stop()
        run.follow()
        self._run = None
        return run.finish(is_wanted=self._end_asked.is_set())

    def _loaded(self, report: LoadReport) -> None:
        if self._abandoned.is_set():
            raise LoadRefusedError(self._stall or LoadFailure(code="load_stalled", message=""))
        self._context.loads.loaded(self.load, report)

    # These record the end of an engine. They return the seconds until the next one starts;
    # ``None``: there is none.

    def _after_refusal(self, failure: LoadFailure) -> float | None:
        """The engine, or the neuron before it, reported why it does not load."""
        self._context.loads.release(self.load)
        self.load.is_settled = False  # its memory is no longer kept: the next one asks for it
        if self._end_asked.is_set():
            return None
        failure = self._with_costs(failure)
        model = self.load.spec.model
        log.error("replica %s: not loaded (%s): %s", model, failure.code, failure.message)
        if failure.is_permanent:
            self._context.discard(self.load)
        return self._after(failure, 0.0)

    def _after_crash(self, failure: LoadFailure, served_s: float, how: str) -> float | None:
        """``how`` the process ended, for people."""
        log.error("replica %s: the engine process %s", self.load.spec.model, how)
        return self._after(failure, served_s)

    def _after_failed_start(self, error: OSError) -> float | None:
        how = f"could not be started: {error}"
        failure = LoadFailure(code="engine_crashed", message=f"the engine process {how}")
        return self._after_crash(failure, 0.0, how)

    def _after_broken_supervisor(self) -> float | None:
        """The thread that followed the engine raised."""
        message = "the neuron broke while it followed the engine; see its log"
        return self._after(LoadFailure(code="engine_crashed", message=message), 0.0)

    def _after(self, failure: LoadFailure, served_s: float) -> float | None:
        policy = self._context.restart_policy
        # Planned again by the control, at once where it served well.
        if spans_neurons(self.load.spec):
            if served_s >= policy.healthy_after_s:
                return None
            policy = NO_RESTARTS
        delay_s = self._record.failed(failure, served_s, policy)
        self._context.on_change()
        return delay_s

    def _with_costs(self, failure: LoadFailure) -> LoadFailure:
        """The failure, with what the layers take where the whole model lacked memory on a device:
        the control can plan it over several."""
        spec = self.load.spec
        if failure.code not in TOO_LARGE or spec.stages or spec.tensor_parallel > 1:
            return failure
        free_bytes = self._context.loads.most_free_bytes()
        costs = self._context.weigh(spec, self.load.weights, free_bytes, self._is_cancelled)
        return msgspec.structs.replace(failure, costs=costs)


def spans_neurons(spec: LoadSpec) -> bool:
    return any(stage.neuron for stage in spec.stages)
