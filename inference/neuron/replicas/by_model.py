"""Which replica this neuron has of each model: at most one that is not on its way out.

Any thread may call; nothing blocks, and nothing is started or ended here.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from inference.neuron.loads.load import Load
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.replica import Replica
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load import LoadSpec, spec_digest


class Replicas:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_model: dict[str, Replica] = {}
        self._is_closed = False

    def all(self) -> list[Replica]:
        with self._lock:
            return list(self._by_model.values())

    def find(self, model: str) -> Replica | None:
        with self._lock:
            return self._by_model.get(model)

    def close(self) -> bool:
        """The neuron ends: none comes any more. Whether this call closed it."""
        with self._lock:
            was_open, self._is_closed = not self._is_closed, True
            return was_open

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def add(self, spec: LoadSpec, context: ReplicaContext) -> tuple[Replica | None, Replica | None]:
        """The replica that is to be started, and the one that it replaces. No new one where the
        model is here or on its way by that spec: that one is the new job's."""
        with self._lock:
            current = self._by_model.get(spec.model)
            if self._is_closed:
                return None, current
            if current is not None and _is_already(current, spec):
                if not current.is_resting:  # its waking is the new job's, its sleep is not
                    current.adopt_job(spec)
                return None, current
            replica = Replica(spec, context, predecessor=current)
            self._by_model[spec.model] = replica
            return replica, current

    def restore(
        self, specs: Iterable[LoadSpec], context: ReplicaContext, lethal: Collection[str] = ()
    ) -> list[Replica]:
        """Recreate a previous instance's replicas, except models that were requested since. Those
        of ``lethal`` models, which ended that instance, are not started."""
        with self._lock:
            restored = [
                Replica(spec, context, recovering=spec.model not in lethal)
                for spec in specs
                if spec.model not in self._by_model
            ]
            self._by_model |= {replica.spec.model: replica for replica in restored}
            return restored

    def forget(self, load: Load) -> None:
        """Forgets the replica of that load, which is gone. One that has taken its place stays."""
        with self._lock:
            replica = self._by_model.get(load.spec.model)
            if replica is not None and replica.load is load:
                del self._by_model[load.spec.model]

    def surviving_specs(self) -> list[LoadSpec]:
        """What the next life loads again."""
        specs = (replica.surviving_spec for replica in self.all())
        return [spec for spec in specs if spec is not None]

    def weights_in_use(self) -> dict[str, list[Path]]:
        """Model -> its weight files in the cache of downloads."""
        return {
            replica.spec.model: list(replica.load.weights)
            for replica in self.all()
            if replica.status is not ReplicaStatus.FAILED
        }

    def weights_of_others(self, load: Load) -> set[Path]:
        others = [replica.load for replica in self.all() if replica.load is not load]
        return {path for other in others for path in other.weights}


def _is_already(replica: Replica, spec: LoadSpec) -> bool:
    """Whether a load of ``spec`` has nothing to do but wait, or to wake it."""
    if replica.is_resting:
        return spec_digest(replica.spec) == spec_digest(spec) and _is_where(replica, spec)
    if replica.status in (ReplicaStatus.FAILED, ReplicaStatus.DRAINING):
        return False
    return spec_digest(replica.spec) == spec_digest(spec)


def _is_where(replica: Replica, spec: LoadSpec) -> bool:
    """What sleeps wakes on the devices that it had."""
    kinds = {name.partition(":")[0] for name in replica.load.devices}
    return not spec.devices or {*spec.devices} <= {*replica.load.devices, *kinds}
