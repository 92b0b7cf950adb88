"""One model loaded on this neuron, as the neuron's threads command it: unload, sleep, wake, stop.

    READY ─▶ DRAINING ─ requests are done ─▶ its engine ends ─▶ gone
                                         └─▶ command to the engine ─▶ ASLEEP
    ASLEEP ─▶ LOADING ─ admitted as a load is ─▶ command to the engine ─▶ READY

Its own thread, in ``EngineRuns``, listens to the engine, so waking waits in another one.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import msgspec

from inference.loading.sources.sources import local_identity
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.loads.watch import GRACE_S
from inference.neuron.replicas.engine_run import EngineRuns
from inference.neuron.replicas.record import ReplicaContext
from inference.protocol.engine import DropAdapter, Wake
from inference.protocol.heartbeat import ReplicaStatus, SleepRefusal
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 120.0
POLL_S = 0.2


class Replica(EngineRuns):
    def refuse(self, failure: LoadFailure) -> None:
        """Call instead of ``start``."""
        self._is_first_load = True
        self.load.file_identity = local_identity(self.spec)
        self.give_up(failure)
        self._leave_loads()

    def tick(self) -> None:
        """Call once a second."""
        self._check_engine()
        limit_s = self._context.load_stall_limit_s
        with self._changed:
            stalled_s = self._watch.check(self._context.clock())
            if limit_s is None or stalled_s <= limit_s:
                return
            failure, is_known = self._watch.failure(stalled_s), self._stall is not None
            self._stall = self._stall or failure
        if not is_known:
            self._end_load(failure)
        elif stalled_s > limit_s + GRACE_S and not self._is_abandoned:
            # Give the load up without its thread, so that later loads get their turn.
            self._is_abandoned = True
            log.critical("replica %s: its thread hangs; it is given up", self.spec.model)
            self.give_up(failure)
            self._leave_loads()

    def _end_load(self, failure: LoadFailure) -> None:
        log.error("replica %s: %s; it is ended", self.spec.model, failure.message)
        if (engine := self._engine) is not None:
            self._load_failure = failure
            engine.abandon()

    def improve(self) -> None:
        with self._changed:
            self._has_improved = True
        self._context.on_change()

    def drop_adapter(self, name: str) -> None:
        self._send(DropAdapter(name=name))  # without an engine there is no adapter either

    def is_idle(self) -> bool:
        """Requests on their way to it, or waiting for its load, count too."""
        with self._changed:
            if self.status in (ReplicaStatus.LOADING, ReplicaStatus.RECOVERING):
                return False
            has_work = self._context.table.has_work_for(self.spec.model)
            return self.status is not ReplicaStatus.READY or not has_work

    def drain(self, *, at_once: bool = False, only_if_idle: bool = False) -> bool:
        """Unloads; a load is cancelled. Returns at once; ``False``: it has work again."""
        with self._changed:
            begins = self._is_falling_asleep
            if self.status is not ReplicaStatus.DRAINING and (not only_if_idle or self.is_idle()):
                self._move_to(ReplicaStatus.DRAINING)
                begins = True
            self._is_falling_asleep = False
            is_draining, was_gone = self.status is ReplicaStatus.DRAINING, self.is_gone
            if begins or at_once:
                self._drain_by_s = time.monotonic() + (0.0 if at_once else DRAIN_TIMEOUT_S)
        if begins:
            self._end_asked.set()
            self._context.loads.wake()
            self._context.on_change()
            if was_gone:  # it had failed: its thread has ended and cannot report
                self._context.on_gone(self.load)
        self._check_engine()
        return is_draining

    def leave_if_idle(self, *, may_sleep: bool) -> bool:
        """``False``: it has work again."""
        return (may_sleep and self._fall_asleep(only_if_idle=True)) or self.drain(only_if_idle=True)

    def sleep(self, job_id: str) -> None:
        """Returns at once. If it cannot sleep, it keeps serving, and its state reports that for the
        job."""
        if self._fall_asleep():
            return
        with self._changed:
            if self.is_resting:
                return
            if (asleep := self.may_sleep_as) is not None:
                why = f"the host has no room for {asleep.host_bytes:,} bytes of weights"
            elif self.status is not ReplicaStatus.READY:
                why = f"it is {self.status.value}"
            else:
                why = "models of its kind are only unloaded"
            failure = LoadFailure(code="cannot_sleep", message=f"It serves on: {why}")
            self._sleep_refusal = SleepRefusal(
                job_id=job_id, failure=failure, at_unix_s=time.time()
            )
        log.warning("%s does not fall asleep: %s", self.spec.model, why)
        self._context.on_change()

    def _fall_asleep(self, *, only_if_idle: bool = False) -> bool:
        asleep, loads = self.may_sleep_as, self._context.loads
        if asleep is None or not loads.keep_host_room(self.load, asleep.host_bytes):
            return False
        with self._changed:
            if self.status is not ReplicaStatus.READY or (only_if_idle and not self.is_idle()):
                loads.host_room_unused(self.load)
                return False
            self._move_to(ReplicaStatus.DRAINING)
            self._is_falling_asleep = True
            self._drain_by_s = time.monotonic() + DRAIN_TIMEOUT_S
        log.info("%s falls asleep once its requests are done", self.spec.model)
        self._context.on_change()
        self._check_engine()
        return True

    def wake(self, spec: LoadSpec) -> None:
        """``spec.evict`` names the replicas that must leave."""
        with self._changed:
            self._wanted = spec
            if self.is_resting and self._waker is None:
                name = f"wakes-{spec.model}"
                self._waker = SupervisedThread(self._wake, name=name, restarts=False)
                self._waker.start()

    # The thread that wakes it.

    def _wake(self) -> None:
        failure: LoadFailure | None = None
        try:
            self._try_to_wake()
        except LoadRefusedError as refused:
            failure = refused.failure
            log.warning("%s sleeps on: %s", self.spec.model, failure.message)
        except BaseException:
            log.exception("waking %s broke", self.spec.model)
            message = "waking it broke; see the neuron's log"
            failure = LoadFailure(code="engine_crashed", message=message)
        with self._changed:  # in one step: a new job must find it waking, or asleep without a waker
            self._waker = None
            if failure is None or self.status is not ReplicaStatus.LOADING:
                return
            self._failure = failure
            self._move_to(ReplicaStatus.ASLEEP)
        self._context.on_change()

    def _try_to_wake(self) -> None:
        engine = self._engine
        while self._is_falling_asleep and not self.wait_left(POLL_S):
            pass
        with self._changed:
            if engine is None or self.status is not ReplicaStatus.ASLEEP:
                return
            self._failure = None
            self._progress = LoadProgress(stage=LoadStage.WAKING)
            self._move_to(ReplicaStatus.LOADING)
            self.adopt_job(self._wanted)
            self.load.spec = msgspec.structs.replace(self.load.spec, evict=self._wanted.evict)
        self._context.on_change()

        def is_cancelled() -> bool:
            return self._end_asked.is_set() or self._engine is not engine

        if self._context.admission.readmit(self.load, is_cancelled, self.progressed):
            with self._changed:
                self._begin_turn(engine)
            self._send(Wake())


class Replicas:
    """Any thread may call; nothing blocks, and nothing is started or ended here. ``_lock`` guards
    the map; a replica's own lock may be taken inside it, never the other way round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_model: dict[str, Replica] = {}
        self.is_closed = False

    def all(self) -> list[Replica]:
        with self._lock:
            return list(self._by_model.values())

    def find(self, model: str) -> Replica | None:
        with self._lock:
            return self._by_model.get(model)

    def close(self) -> bool:
        """Returns whether this call closed it."""
        with self._lock:
            was_open, self.is_closed = not self.is_closed, True
            return was_open

    def add(
        self, spec: LoadSpec, context: ReplicaContext, *, recovering: bool = False
    ) -> tuple[Replica | None, Replica | None]:
        """Returns the replica to start (``None``: the present one adopts the job) and the present
        one. A restored spec (``recovering``) never replaces a present one."""
        with self._lock:
            current = self._by_model.get(spec.model)
            if self.is_closed or (recovering and current is not None):
                return None, current
            if current is not None and _is_loaded_by(current, spec):
                if not current.is_resting:  # a resting model adopts the job when it wakes
                    current.adopt_job(spec)
                return None, current
            replica = Replica(spec, context, recovering=recovering, predecessor=current)
            self._by_model[spec.model] = replica
            return replica, current

    def forget(self, load: Load) -> None:
        with self._lock:
            replica = self._by_model.get(load.spec.model)
            if replica is not None and replica.load is load:
                del self._by_model[load.spec.model]

    def weights_of_others(self, load: Load) -> set[Path]:
        others = [replica.load for replica in self.all() if replica.load is not load]
        return {path for other in others for path in other.weights}


def _is_loaded_by(replica: Replica, spec: LoadSpec) -> bool:
    if spec_digest(replica.spec) != spec_digest(spec):
        return False
    if not replica.is_resting:
        return replica.status not in (ReplicaStatus.FAILED, ReplicaStatus.DRAINING)
    kinds = {name.partition(":")[0] for name in replica.load.devices}
    return not spec.devices or {*spec.devices} <= {*replica.load.devices, *kinds}
