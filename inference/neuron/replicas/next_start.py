"""When a replica's next engine starts, after one that was refused, crashed or could not be started.

end ─┬─ refused ─▶ its memory is released, a file that is at fault discarded ─┐
     └─ crashed ──────────────────────────────────────────────────────────────┴▶ RestartPolicy
                                                                 ─▶ seconds to wait, or never
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from inference.neuron.loads.load import Load
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.replicas.retries import RestartPolicy
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import TOO_LARGE, LoadFailure

log = logging.getLogger(__name__)


NO_RESTARTS = RestartPolicy(max_quick_failures=0)


def spans_neurons(spec: LoadSpec) -> bool:
    """Whether other neurons hold stages of it."""
    return any(stage.neuron for stage in spec.stages)


class NextStart:
    """For the replica's supervising thread. Each method records the end of an engine, and returns
    the seconds until the next one; ``None``: there is none."""

    def __init__(
        self,
        load: Load,
        record: ReplicaRecord,
        context: ReplicaContext,
        end_asked: threading.Event,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._load = load
        self._record = record
        self._context = context
        self._end_asked = end_asked
        self._is_cancelled = is_cancelled

    def after_refusal(self, failure: LoadFailure) -> float | None:
        """The engine, or the neuron before it, reported why it does not load."""
        self._context.loads.release(self._load)
        self._load.is_settled = False  # its memory is no longer kept: the next one asks for it
        if self._end_asked.is_set():
            return None
        failure = self._with_costs(failure)
        model = self._load.spec.model
        log.error("replica %s: not loaded (%s): %s", model, failure.code, failure.message)
        if failure.is_permanent:
            self._context.discard(self._load)
        return self._after(failure, 0.0)

    def after_crash(self, failure: LoadFailure, served_s: float, how: str) -> float | None:
        """``how`` the process ended, for people."""
        log.error("replica %s: the engine process %s", self._load.spec.model, how)
        return self._after(failure, served_s)

    def after_failed_start(self, error: OSError) -> float | None:
        how = f"could not be started: {error}"
        failure = LoadFailure(code="engine_crashed", message=f"the engine process {how}")
        return self.after_crash(failure, 0.0, how)

    def after_broken_supervisor(self) -> float | None:
        """The thread that followed the engine raised."""
        message = "the neuron broke while it followed the engine; see its log"
        return self._after(LoadFailure(code="engine_crashed", message=message), 0.0)

    def _after(self, failure: LoadFailure, served_s: float) -> float | None:
        """``served_s``: how long it had been loaded."""
        policy = self._context.restart_policy
        # Planned again by the control, at once where it served well.
        if spans_neurons(self._load.spec):
            if served_s >= policy.healthy_after_s:
                return None
            policy = NO_RESTARTS
        delay_s = self._record.failed(failure, served_s, policy)
        self._context.on_change()
        return delay_s

    def _with_costs(self, failure: LoadFailure) -> LoadFailure:
        """The failure, with what the layers take where the whole model lacked memory on a device:
        the control can plan it over several."""
        spec = self._load.spec
        if failure.code not in TOO_LARGE or spec.stages or spec.tensor_parallel > 1:
            return failure
        free_bytes = self._context.loads.most_free_bytes()
        costs = self._context.weigh(spec, self._load.weights, free_bytes, self._is_cancelled)
        return msgspec.structs.replace(failure, costs=costs)
