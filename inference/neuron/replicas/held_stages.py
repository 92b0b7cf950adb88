"""The stages that this neuron holds for engines of other neurons: each of a model at most once.

    thread: admitted ─▶ start its process ─▶ it listens ─▶ its engine comes, it reads its layers
                                                   └─▶ … end of file ─▶ reaped, memory released

Nothing is restarted: the model is planned again where a stage ends. Its links and steps are its
process' business, its requests its engine's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from inference.neuron.errors import IllegalTransitionError, LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.loads.watch import LoadWatch, SilenceTimer
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.engine_process import EngineProcess
from inference.protocol.engine import (
    EngineFaulted,
    EngineMessage,
    LoadFailedMessage,
    LoadProgressed,
    StageAlive,
    StageListening,
    StageReady,
    StageReleased,
)
from inference.protocol.heartbeat import HELD_STAGE_TRANSITIONS, HeldStage, HeldStageStatus
from inference.protocol.load import LoadSpec, own_stages, spec_digest
from inference.protocol.load_progress import LoadFailure, LoadProgress, LoadStage
from inference.supervised_threads import SupervisedThread

log = logging.getLogger(__name__)


STOP_GRACE_S = 2.0


class StageHolder:
    def __init__(
        self, spec: LoadSpec, context: ReplicaContext, predecessors: Sequence[StageHolder] = ()
    ) -> None:
        """``spec.stage_of`` is set. ``predecessors``: holders of the same stage that must be gone
        before this one begins."""
        assert spec.stage_of is not None
        self.spec = spec
        self.load = Load(spec)
        self._of = spec.stage_of
        self._context = context
        self._predecessors = predecessors
        self._lock = threading.Lock()
        self._status = HeldStageStatus.LOADING
        self._since_unix_s = time.time()
        self._progress: LoadProgress | None = LoadProgress(stage=LoadStage.STARTING)
        self._failure: LoadFailure | None = None
        self._address = ""
        self._limit_bytes = 0
        self._watch = LoadWatch()
        self._silence: SilenceTimer | None = None
        """``None`` until it has its layers."""
        self._engine: EngineProcess | None = None
        self._stop_sent_s: float | None = None
        self._release_asked = threading.Event()
        self._gone = threading.Event()
        self._thread = SupervisedThread(
            self._supervise, name=f"stage-{self._of.index}-{spec.model}", restarts=False
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def key(self) -> tuple[str, int]:
        return self.spec.model, self._of.index

    @property
    def is_over(self) -> bool:
        return self._gone.is_set()

    @property
    def has_failed(self) -> bool:
        return self._status is HeldStageStatus.FAILED

    @property
    def failed_s(self) -> float:
        return time.time() - self._since_unix_s if self.has_failed else 0.0

    def state(self) -> HeldStage:
        stage = own_stages(self.spec)[0]
        kept_bytes = self._context.loads.kept_bytes(self.load)
        with self._lock:
            return HeldStage(
                model=self.spec.model,
                job_id=self.spec.job_id,
                order=self.spec.order,
                engine_neuron=self._of.engine_neuron,
                index=self._of.index,
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

    def stop(self) -> None:
        """Releases it: ends it, whatever it does. Returns at once."""
        self._release_asked.set()
        self._context.loads.wake()
        if (engine := self._engine) is not None:
            if self._stop_sent_s is None:
                self._stop_sent_s = time.monotonic()
            engine.stop()

    def kill(self) -> None:
        if (engine := self._engine) is not None:
            engine.kill()

    def wait_gone(self, timeout_s: float | None = None) -> bool:
        return self._gone.wait(timeout_s)

    def tick(self) -> None:
        """Called once a second: kills a process that is silent, or that does not stop when asked,
        and ends a load that makes no progress."""
        engine, now_s = self._engine, self._context.clock()
        with self._lock:
            limit_s = self._context.load_stall_limit_s
            stalled_s = self._watch.check(now_s)
            if limit_s is not None and stalled_s > limit_s and self._failure is None:
                self._failure = self._watch.failure(stalled_s)
                self._release_asked.set()
            silent_s = 0.0 if self._silence is None else self._silence.check(time.monotonic())
        if engine is None:
            return
        silence_limit_s = self._context.silence_limit_s
        is_silent = silence_limit_s is not None and silent_s > silence_limit_s
        sent_s = self._stop_sent_s
        if is_silent or (sent_s is not None and time.monotonic() - sent_s > STOP_GRACE_S):
            engine.abandon()
        elif self._release_asked.is_set() and sent_s is None:
            self.stop()

    # The supervising thread.

    def _supervise(self) -> None:
        for predecessor in self._predecessors:
            predecessor.wait_gone()
        self._predecessors = ()
        try:
            self._hold()
        except BaseException:
            log.exception("stage %d of %s: its supervisor broke", self._of.index, self.spec.model)
            self.kill()
            message = "the neuron broke while it followed the stage; see its log"
            self._fail(LoadFailure(code="engine_crashed", message=message))
        finally:
            self._context.loads.release(self.load)
            self._gone.set()
            if not self.has_failed:
                self._context.on_gone(self.load)
            self._context.on_change()

    def _hold(self) -> None:
        try:
            spec = self._context.admission.admit(
                self.load, self._release_asked.is_set, self._progressed
            )
        except LoadRefusedError as refused:
            self._fail(refused.failure)
            return
        if spec is None:
            self._end_cancelled()
            return
        self._limit_bytes = own_stages(spec)[0].memory_limit_bytes or 0
        try:
            engine = self._engine = self._context.start_engine(spec)
        except OSError as error:
            how = f"the process of the stage could not be started: {error}"
            self._fail(LoadFailure(code="engine_crashed", message=how))
            return
        if self.load.devices == ("cpu",):
            # A card's free memory does not show whose it is: there it counts once it is read.
            self._context.loads.started(self.load, engine.pid)
        if self._release_asked.is_set():
            self.stop()
        for message in engine.messages():
            self._take(message, engine)
        self._ended(engine.reap())

    def _take(self, message: EngineMessage, engine: EngineProcess) -> None:
        if self._silence is not None:
            self._silence.end()
        match message:
            case LoadProgressed(progress=progress):
                self._progressed(progress)
            case StageListening(address=address):
                self._context.loads.listens(self.load, self._limit_bytes)
                with self._lock:
                    self._address = address
                    self._watch.stop()  # its engine comes when it may
                    self._move_to(HeldStageStatus.LISTENING)
                self._context.on_change()
            case StageReady(report=report, memory=memory):
                if self._status is HeldStageStatus.LISTENING:
                    self._context.loads.started(self.load, engine.pid)
                    with self._lock:
                        self._watch.stop()
                        self._silence = SilenceTimer()
                        self._move_to(HeldStageStatus.READY)
                    self._context.on_change()
                if report.kv_bytes:
                    self._context.loads.stage_took(self.load, memory)
            case StageReleased(reason=reason):
                log.info("stage %d of %s: %s", self._of.index, self.spec.model, reason)
                self._release_asked.set()
            case LoadFailedMessage(failure=failure):
                self._failure = failure
            case EngineFaulted(code=code, message=text):
                self._failure = LoadFailure(code=code, message=text)
            case StageAlive():
                pass

    def _ended(self, how: str) -> None:
        self._context.loads.engine_ended(self.load)
        name = f"stage {self._of.index} of {self.spec.model}"
        if self._release_asked.is_set():
            self._end_cancelled()
            log.info("%s: its process %s", name, how)
            return
        log.error("%s: its process %s", name, how)
        crashed = LoadFailure(code="engine_crashed", message=f"the process of the stage {how}")
        self._fail(self._failure or crashed)

    def _end_cancelled(self) -> None:
        """Fails it if it made no progress; else it was released."""
        if self._failure is not None:
            self._fail(self._failure)

    def _progressed(self, progress: LoadProgress) -> None:
        with self._lock:
            self._progress = progress
            self._watch.progressed(progress)

    def _fail(self, failure: LoadFailure) -> None:
        """Records the failure, unless the stage had its layers: then its engine reports the
        fault."""
        log.error("stage %d of %s: %s", self._of.index, self.spec.model, failure.message)
        with self._lock:
            if self._status in (HeldStageStatus.READY, HeldStageStatus.FAILED):
                return
            self._failure = failure
            self._watch.stop()
            self._move_to(HeldStageStatus.FAILED)

    def _move_to(self, status: HeldStageStatus) -> None:
        """Holds the lock already. Raises ``IllegalTransitionError``."""
        if status not in HELD_STAGE_TRANSITIONS[self._status]:
            raise IllegalTransitionError(
                f"a stage of {self.spec.model}: {self._status} -> {status}"
            )
        self._status = status
        self._since_unix_s = time.time()


FAILURE_KEPT_S = 600.0
"""How long a failed stage is reported: placement leaves this neuron out meanwhile."""


class HeldStages:
    """Any thread may call; nothing blocks."""

    def __init__(self, context: Callable[[], ReplicaContext]) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._holders: list[StageHolder] = []
        self._is_closed = False

    def hold(self, spec: LoadSpec) -> None:
        """Begins to hold the stage. The same order again changes nothing; that of another load
        takes its place."""
        of = spec.stage_of
        if of is None or not 0 < of.index < len(spec.stages):
            log.error("the order of a stage of %s names none of its stages", spec.model)
            return
        with self._lock:
            others = [one for one in self._holders if one.key == (spec.model, of.index)]
            holder = StageHolder(spec, self._context(), others)
            if self._is_closed or any(one.spec.job_id == spec.job_id for one in others):
                return
            self._holders = [one for one in self._holders if not (one in others and one.is_over)]
            self._holders.append(holder)
        for other in others:
            other.stop()
        holder.start()

    def release(self, model: str, job_id: str) -> None:
        """Ends all stages of that load, whatever they do."""
        for holder in self._of(model, job_id):
            holder.stop()

    def states(self) -> list[HeldStage]:
        return [holder.state() for holder in self.all()]

    def all(self) -> list[StageHolder]:
        with self._lock:
            return list(self._holders)

    def close(self) -> list[StageHolder]:
        """Takes no further stage. Returns the holders of those that are here."""
        with self._lock:
            self._is_closed = True
            return list(self._holders)

    def tick(self) -> None:
        for holder in self.all():
            holder.tick()
            if holder.has_failed and holder.failed_s > FAILURE_KEPT_S:
                self.forget(holder.load)

    def forget(self, load: Load) -> None:
        with self._lock:
            self._holders = [one for one in self._holders if one.load is not load]

    def weights_in_use(self) -> dict[str, list[Path]]:
        """Model -> its weight files in the cache of downloads."""
        found: dict[str, list[Path]] = {}
        for holder in self.all():
            if not holder.is_over:
                found.setdefault(holder.spec.model, []).extend(holder.load.weights)
        return found

    def _of(self, model: str, job_id: str) -> Collection[StageHolder]:
        return [one for one in self.all() if one.spec.model == model and one.spec.job_id == job_id]
