"""One model loaded on this neuron, from the load job to the unload.

    thread: start engine ─▶ follow it … end of file ─▶ fail what it ran ─▶ wait ─▶ start again

One thread per replica supervises: it follows one engine run after the other. What is known of the
replica is in its ``ReplicaRecord``, one engine's life in its ``EngineRun``; other threads ask for
work to be drained or stopped.
"""

from __future__ import annotations

import logging
import threading
import time

import msgspec

from inference.neuron.engine_process import EngineProcess
from inference.neuron.engine_run import EngineRun
from inference.neuron.model_text import ModelText
from inference.neuron.replica_context import ReplicaContext
from inference.neuron.replica_record import ReplicaRecord
from inference.protocol.heartbeat import ReplicaState, ReplicaStatus
from inference.protocol.load import LoadFailure, LoadSpec

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 120.0
"""How long an unload waits for requests in flight before it fails them."""


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
        self._record = ReplicaRecord(spec.model, recovering=recovering)
        self._run: EngineRun | None = None
        self._end_asked = threading.Event()
        self._gone = threading.Event()
        self._thread = threading.Thread(
            target=self._supervise, name=f"replica-{spec.model}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def status(self) -> ReplicaStatus:
        return self._record.status

    @property
    def should_survive(self) -> bool:
        """Whether the neuron's next life loads it again: not after an unload or a refused load."""
        return self._record.should_survive

    def state(self) -> ReplicaState:
        return self._record.state(self.spec)

    def adopt_job(self, job_id: str) -> None:
        """A second load job asks for what is here already: it is this replica's from now on."""
        self.spec = msgspec.structs.replace(self.spec, job_id=job_id)

    def promised_bytes(self) -> int:
        """Host memory that its engine may take beyond what it holds."""
        return self._record.promised_bytes()

    def take_request(self) -> tuple[EngineProcess, ModelText]:
        """What runs a new request. Raises ``RequestRefusedError`` unless the model is ready."""
        return self._record.take_request()

    def drain(self) -> None:
        """Unload: take nothing new, wait for what runs, end the engine. Returns at once."""
        if not self._record.begin_draining():
            return
        self._end_asked.set()
        self._context.on_change()
        run = self._run
        if self._gone.is_set():  # it had failed: there is no thread to say so
            self._context.on_gone(self)
        elif run is not None:
            run.drain(time.monotonic() + DRAIN_TIMEOUT_S)

    def tick(self) -> None:
        """Once a second: ends a drained engine, kills one that hangs or does not stop when told."""
        if (run := self._run) is not None:
            run.tick()

    def stop(self) -> None:
        """The neuron is ending: the engine is told to stop at once. Returns at once."""
        self._end_asked.set()
        if (run := self._run) is not None:
            run.stop()

    def kill(self) -> None:
        if (run := self._run) is not None:
            run.engine.kill()

    def wait_gone(self, timeout_s: float | None = None) -> bool:
        return self._gone.wait(timeout_s)

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
        if self.status is not ReplicaStatus.FAILED:
            self._context.on_gone(self)
        self._gone.set()

    def _run_engine(self) -> float | None:
        """One engine from start to end. Seconds until the next; ``None``: there is none."""
        try:
            engine = self._context.start_engine(self.spec)
        except OSError as error:
            how = f"could not be started: {error}"
            failure = LoadFailure(code="engine_crashed", message=f"the engine process {how}")
            return self._next_start(failure, 0.0, how)
        run = EngineRun(engine, self.spec, self._record, self._context)
        self._run = run
        self._record.engine_started()
        if self._end_asked.is_set():  # asked between the check and the start
            run.stop()
        run.follow()
        self._run = None
        end = run.finish(is_wanted=self._end_asked.is_set())
        if self._end_asked.is_set():
            log.info("replica %s: engine process %d %s", self.spec.model, engine.pid, end.how)
            return None
        return self._next_start(end.failure, end.served_s, end.how)

    def _next_start(self, failure: LoadFailure, served_s: float, how: str) -> float | None:
        log.error("replica %s: the engine process %s", self.spec.model, how)
        delay_s = self._record.failed(failure, served_s, self._context.restart_policy)
        self._context.on_change()
        return delay_s
