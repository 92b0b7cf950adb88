"""The stages that this neuron holds for engines of other neurons: each of a model at most once.

    thread: admitted ─▶ start its process ─▶ it listens ─▶ its engine comes, it reads its layers
                                                   └─▶ … end of file ─▶ reaped, memory released

Nothing is restarted: the control plans the model again where a stage ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from inference.neuron.errors import IllegalTransitionError, LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.loads.watch import LoadWatch, SilenceTimer
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.record import EngineOwner, ReplicaContext
from inference.protocol import engine as messages
from inference.protocol.heartbeat import HELD_STAGE_TRANSITIONS, HeldStage, HeldStageStatus
from inference.protocol.load import LoadSpec, StageOf, own_stages, spec_digest
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadStage
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


class StageHolder(EngineOwner):
    """``_lock`` guards what ``state`` reports; the queue of loads is called without it."""

    def __init__(
        self,
        spec: LoadSpec,
        of: StageOf,
        context: ReplicaContext,
        predecessors: Sequence[StageHolder],
    ) -> None:
        """``predecessors`` must be gone before this one begins."""
        super().__init__(context)
        self.spec = spec
        self.of = of
        self.load = Load(spec)
        self._name = f"stage {of.index} of {spec.model}"
        self._predecessors = predecessors
        self._lock = threading.Lock()
        self._status = HeldStageStatus.LOADING
        self._since_unix_s = time.time()
        self._progress: LoadProgress | None = LoadProgress(stage=LoadStage.STARTING)
        self._failure: LoadFailure | None = None
        self._address = ""
        self._watch = LoadWatch()
        self._gone = threading.Event()
        self.wait_gone = self._gone.wait
        name = f"stage-{of.index}-{spec.model}"
        self.start = SupervisedThread(self._supervise, name=name, restarts=False).start

    @property
    def is_over(self) -> bool:
        return self._gone.is_set()

    @property
    def failed_s(self) -> float:
        has_failed = self._status is HeldStageStatus.FAILED
        return time.time() - self._since_unix_s if has_failed else 0.0

    def state(self) -> HeldStage:
        stage = own_stages(self.spec)[0]
        kept_bytes = self._context.loads.kept_bytes(self.load)
        with self._lock:
            return HeldStage(
                model=self.spec.model,
                job_id=self.spec.job_id,
                order=self.spec.order,
                engine_neuron=self.of.engine_neuron,
                index=self.of.index,
                num_stages=len(self.spec.stages),
                layers=stage.layers,
                device=stage.device,
                status=self._status,
                since_unix_s=self._since_unix_s,
                spec_digest=spec_digest(self.spec),
                memory_bytes=kept_bytes,
                address=self._address,
                progress=None if self._status is HeldStageStatus.READY else self._progress,
                failure=self._failure,
            )

    def tick(self) -> None:
        """Call once a second."""
        limit_s = self._context.load_stall_limit_s
        with self._lock:
            stalled_s = self._watch.check(self._context.clock())
            if limit_s is not None and stalled_s > limit_s and self._failure is None:
                self._failure = self._watch.failure(stalled_s)
                self._end_asked.set()
        if (engine := self._engine) is None:
            return
        if engine.check(self._context.silence_limit_s):
            engine.abandon()
        elif self._end_asked.is_set() and not engine.is_stopping:
            self.stop()

    # The supervising thread.

    def _supervise(self) -> None:
        for predecessor in self._predecessors:
            predecessor.wait_gone()
        self._predecessors = ()
        try:
            self._hold()
        except LoadRefusedError as refused:
            self._fail(refused.failure)
        except BaseException:
            log.exception("%s: its supervisor broke", self._name)
            self.kill()
            message = "the neuron broke while it followed the stage; see its log"
            self._fail(LoadFailure(code="engine_crashed", message=message))
        finally:
            self._context.loads.release(self.load)
            self._gone.set()
            if self._status is not HeldStageStatus.FAILED:
                self._context.on_gone(self.load)
            self._context.on_change()

    def _hold(self) -> None:
        is_released = self._end_asked.is_set
        spec = self._context.admission.admit(self.load, is_released, self._progressed)
        if spec is None:
            self._ended("was not started")
            return
        try:
            engine = self._engine = self._context.start_engine(spec)
        except OSError as error:
            how = f"the process of the stage could not be started: {error}"
            raise LoadRefusedError(LoadFailure(code="engine_crashed", message=how)) from error
        if self.load.devices == ("cpu",):
            # On a card free memory does not show whose it is: it counts once the layers are read.
            self._context.loads.started(self.load, engine.pid)
        if is_released():
            self.stop()
        limit_bytes = own_stages(spec)[0].memory_limit_bytes or 0
        for message in engine.messages():
            self._take(message, engine, limit_bytes)
        self._ended(engine.reap())

    def _take(
        self, message: messages.EngineMessage, engine: EngineProcess, limit_bytes: int
    ) -> None:
        match message:
            case messages.LoadProgressed(progress=progress):
                self._progressed(progress)
            case messages.StageListening(address=address):
                self._context.loads.listens(self.load, limit_bytes)
                self._address = address
                self._move_to(HeldStageStatus.LISTENING)
            case messages.StageReady(report=report, memory=memory):
                if self._status is HeldStageStatus.LISTENING:
                    self._context.loads.started(self.load, engine.pid)
                    engine.silence = SilenceTimer()
                    self._move_to(HeldStageStatus.READY)
                if report.kv_bytes:
                    self._context.loads.stage_took(self.load, memory)
            case messages.StageReleased(reason=reason):
                log.info("%s: %s", self._name, reason)
                self._end_asked.set()
            case messages.LoadFailedMessage(failure=failure):
                self._failure = failure
            case messages.EngineFaulted(code=code, message=text):
                self._failure = LoadFailure(code=code, message=text)

    def _ended(self, how: str) -> None:
        self._context.loads.engine_ended(self.load)
        crashed = LoadFailure(code="engine_crashed", message=f"the process of the stage {how}")
        is_released = self._end_asked.is_set()
        log.log(
            logging.INFO if is_released else logging.ERROR, "%s: its process %s", self._name, how
        )
        if not is_released or self._failure is not None:
            self._fail(self._failure or crashed)

    def _progressed(self, progress: LoadProgress) -> None:
        with self._lock:
            self._progress = progress
            self._watch.progressed(progress)

    def _fail(self, failure: LoadFailure) -> None:
        """A stage that had its layers does not fail: its engine reports the fault."""
        log.error("%s: %s", self._name, failure.message)
        if self._status not in (HeldStageStatus.READY, HeldStageStatus.FAILED):
            self._failure = failure
            self._move_to(HeldStageStatus.FAILED)

    def _move_to(self, status: HeldStageStatus) -> None:
        with self._lock:
            if status not in HELD_STAGE_TRANSITIONS[self._status]:
                raise IllegalTransitionError(f"{self._name}: {self._status} -> {status}")
            self._watch.stop()
            self._status = status
            self._since_unix_s = time.time()
        self._context.on_change()


FAILURE_KEPT_S = 600.0
"""A failed stage is reported for so long: placement leaves this neuron out meanwhile."""


class HeldStages:
    """Any thread may call; nothing blocks. ``_lock`` guards the list."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._holders: list[StageHolder] = []
        self._is_closed = False

    def hold(self, spec: LoadSpec) -> None:
        """Idempotent by job; another job's stage replaces it."""
        of = spec.stage_of
        if of is None or not 0 < of.index < len(spec.stages):
            log.error("the order of a stage of %s names none of its stages", spec.model)
            return
        with self._lock:
            others = [
                one
                for one in self._holders
                if (one.spec.model, one.of.index) == (spec.model, of.index)
            ]
            if self._is_closed or any(one.spec.job_id == spec.job_id for one in others):
                return
            holder = StageHolder(spec, of, self._context, others)
            self._holders = [one for one in self._holders if not (one in others and one.is_over)]
            self._holders.append(holder)
        for other in others:
            other.stop()
        holder.start()

    def release(self, model: str, job_id: str) -> None:
        for holder in self.all():
            if (holder.spec.model, holder.spec.job_id) == (model, job_id):
                holder.stop()

    def all(self) -> list[StageHolder]:
        with self._lock:
            return list(self._holders)

    def close(self) -> list[StageHolder]:
        with self._lock:
            self._is_closed = True
            return list(self._holders)

    def tick(self) -> None:
        for holder in self.all():
            holder.tick()
            if holder.failed_s > FAILURE_KEPT_S:
                self.forget(holder.load)

    def forget(self, load: Load) -> None:
        with self._lock:
            self._holders = [one for one in self._holders if one.load is not load]
