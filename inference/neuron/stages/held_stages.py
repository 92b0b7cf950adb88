"""Which stages this neuron holds for engines of other neurons: each of a model at most once.

Any thread may call; nothing blocks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from inference.neuron.loads.load import Load
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.stages.held_stage import StageHolder
from inference.protocol.heartbeat import HeldStage
from inference.protocol.load import LoadSpec

log = logging.getLogger(__name__)

FAILURE_KEPT_S = 600.0
"""How long a failed stage is reported: placement leaves this neuron out meanwhile."""


class HeldStages:
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
        """None comes any more. Returns those that are here."""
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
