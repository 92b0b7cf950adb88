"""Puts a replica to sleep and wakes it: asleep, its engine frees the device and keeps the weights.

    READY ─fall_asleep─▶ DRAINING ─ requests are done ─▶ command to the engine ─▶ ASLEEP
                                                                                 │ wake
    READY ◀─ command to the engine ◀─ admission as for a load ◀─ LOADING ◀────────┘

Waking waits in a thread of its own, as the supervising one listens to the engine. An engine that
dies asleep counts as unloaded; one that dies while it wakes is restarted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.engine_run import EngineRun
from inference.neuron.replicas.record import ReplicaRecord
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure
from inference.protocol.load_report import AsleepBytes
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


DRAIN_TIMEOUT_S = 120.0
POLL_S = 0.2


class SleepController:
    """Any thread may call; only ``engine_ended`` waits, for the thread that wakes."""

    def __init__(
        self,
        load: Load,
        record: ReplicaRecord,
        context: ReplicaContext,
        end_asked: threading.Event,
        *,
        run: Callable[[], EngineRun | None],
        adopt_job: Callable[[LoadSpec], None],
    ) -> None:
        self._load = load
        self._record = record
        self._context = context
        self._end_asked = end_asked
        self._run = run
        self._adopt_job = adopt_job
        self._lock = threading.Lock()
        self._waker: SupervisedThread | None = None
        self._wanted: LoadSpec | None = None
        self.is_falling_asleep = False

    def fall_asleep(self, only_if: Callable[[ReplicaStatus], bool] = lambda _: True) -> bool:
        """``False``: it cannot, ``only_if`` is false, or the host has no room for its weights."""
        asleep, run = self._record.may_sleep_as, self._run()
        if asleep is None or run is None:
            return False
        if not self._context.loads.keep_host_room(self._load, asleep.host_bytes):
            return False
        with self._lock:
            if not self._record.begin_draining(
                lambda status: status is ReplicaStatus.READY and only_if(status)
            ):
                self._context.loads.host_room_unused(self._load)
                return False
            self.is_falling_asleep = True
        log.info("%s falls asleep once its requests are done", self._load.spec.model)
        self._context.on_change()
        run.drain(time.monotonic() + DRAIN_TIMEOUT_S, then_sleep=True)
        return True

    def why_not_asleep(self) -> str | None:
        """Why ``fall_asleep`` returned ``False``. ``None``: it sleeps already."""
        status, asleep = self._record.status, self._record.may_sleep_as
        if self.is_falling_asleep or status is ReplicaStatus.ASLEEP:
            return None
        if asleep is not None:
            return f"the host has no room for {asleep.host_bytes:,} bytes of weights"
        if status is not ReplicaStatus.READY:
            return f"it is {status.value}"
        return "models of its kind are only unloaded"

    def call_off(self) -> bool:
        """Calls falling asleep off, because it is to be unloaded. Returns whether it was under
        way."""
        with self._lock:
            was_falling, self.is_falling_asleep = self.is_falling_asleep, False
            return was_falling

    def wake(self, spec: LoadSpec) -> None:
        """Wake it if it sleeps or is about to, for the job of ``spec``, which names the replicas to
        evict."""
        with self._lock:
            self._wanted = spec
            rests = self.is_falling_asleep or self._record.status is ReplicaStatus.ASLEEP
            if not rests or self._waker is not None:
                return
            name = f"wakes-{self._load.spec.model}"
            self._waker = SupervisedThread(
                self._wake, name=name, restarts=False, on_broken=lambda _: self._waking_broke()
            )
            self._waker.start()

    # The supervising thread.

    def fell_asleep(self, held: AsleepBytes) -> None:
        with self._lock:
            if not self.is_falling_asleep:
                return  # it has been called off
            self.is_falling_asleep = False
            self._context.loads.fell_asleep(self._load, held)
            self._record.fell_asleep(held)
        log.info("%s is asleep", self._load.spec.model)
        self._context.on_change()

    def woke(self, seconds: float) -> None:
        self._context.loads.awake(self._load)
        self._record.woke()
        log.info("%s woke in %.2f s", self._load.spec.model, seconds)
        self._context.on_change()

    def engine_ended(self) -> bool:
        """Whether it rested, and is gone with its engine. One that was to wake is to be loaded from
        its files."""
        with self._lock:
            was_falling, self.is_falling_asleep = self.is_falling_asleep, False
            waker = self._waker
        if waker is not None:
            waker.join()
        rested = was_falling or self._record.status is ReplicaStatus.ASLEEP
        if rested or self._load.asleep is not None:
            self._context.loads.release(self._load)
            self._load.is_settled = False
        return rested

    # The thread that wakes.

    def _wake(self) -> None:
        refused = self._try_to_wake()
        if refused is not None:
            self._sleep_on(refused)
            return
        with self._lock:
            self._waker = None

    def _waking_broke(self) -> None:
        """Others get the turn."""
        self._context.loads.leave(self._load)
        message = "waking it broke; see the neuron's log"
        self._sleep_on(LoadFailure(code="engine_crashed", message=message))

    def _sleep_on(self, failure: LoadFailure) -> None:
        """In one step: a job that finds it asleep again wakes it again."""
        with self._lock:
            self._waker = None
            self._record.sleeps_on(failure)
        self._context.on_change()

    def _try_to_wake(self) -> LoadFailure | None:
        """Returns why it sleeps on; ``None``: it wakes, or has ended."""
        run = self._run()
        while self.is_falling_asleep and not self._record.wait_left(POLL_S):
            pass
        with self._lock:
            wanted = self._wanted
        if run is None or wanted is None or not self._record.begin_waking():
            return None
        self._adopt_job(wanted)
        self._load.spec = msgspec.structs.replace(self._load.spec, evict=wanted.evict)
        self._context.on_change()

        def is_cancelled() -> bool:
            return self._end_asked.is_set() or run.has_ended

        try:
            has_room = self._context.admission.readmit(
                self._load, is_cancelled, self._record.progressed
            )
        except LoadRefusedError as refused:
            log.warning("%s sleeps on: %s", self._load.spec.model, refused.failure.message)
            return refused.failure
        if has_room:
            run.wake()
        return None
