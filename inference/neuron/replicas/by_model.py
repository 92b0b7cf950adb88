"""Which replica this neuron has of each model: at most one that is not on its way out.

``PersistedSpecs`` mirrors their specs in Redis, so that this neuron's next instance reloads them.
The neuron's memory is the truth; the hash is written again with every heartbeat, so a Redis that
came back empty holds it a second later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
import redis
from redis.client import Pipeline

from inference.neuron.loads.load import Load
from inference.neuron.replicas.context import ReplicaContext
from inference.neuron.replicas.replica import Replica
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.held import blame, load_mark
from inference.protocol.keys import specs_key
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_progress import LoadFailure

log = logging.getLogger(__name__)


class Replicas:
    """Any thread may call; nothing blocks, and nothing is started or ended here."""

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
            if current is not None and _is_loaded_by(current, spec):
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

    def persisted_specs(self) -> list[LoadSpec]:
        specs = (replica.persisted_spec for replica in self.all())
        return [spec for spec in specs if spec is not None]

    def weights_in_use(self) -> dict[str, list[Path]]:
        return {
            replica.spec.model: list(replica.load.weights)
            for replica in self.all()
            if replica.status is not ReplicaStatus.FAILED
        }

    def weights_of_others(self, load: Load) -> set[Path]:
        others = [replica.load for replica in self.all() if replica.load is not load]
        return {path for other in others for path in other.weights}


def _is_loaded_by(replica: Replica, spec: LoadSpec) -> bool:
    if spec_digest(replica.spec) != spec_digest(spec):
        return False
    if replica.is_resting:
        return _is_on_wanted_devices(replica, spec)
    return replica.status not in (ReplicaStatus.FAILED, ReplicaStatus.DRAINING)


def _is_on_wanted_devices(replica: Replica, spec: LoadSpec) -> bool:
    kinds = {name.partition(":")[0] for name in replica.load.devices}
    return not spec.devices or {*spec.devices} <= {*replica.load.devices, *kinds}


class SpecStore:
    def __init__(self, client: redis.Redis, *, neuron: str) -> None:
        self._client = client
        self._key = specs_key(neuron)

    def read(self) -> list[LoadSpec]:
        """Specs that the previous instance had loaded. Raises ``redis.RedisError``."""
        specs = []
        for model, data in self._client.hgetall(self._key).items():
            try:
                specs.append(msgspec.json.decode(data, type=LoadSpec))
            except msgspec.MsgspecError as error:
                log.error("the stored load spec of %s is not understood: %s", model, error)
        return specs

    def write(self, specs: list[LoadSpec]) -> None:
        """Makes the hash hold exactly these. Raises ``redis.RedisError``."""
        pipeline = self._client.pipeline(transaction=True)
        self.queue(pipeline, specs)
        pipeline.execute()

    def queue(self, pipeline: Pipeline, specs: list[LoadSpec]) -> None:
        pipeline.delete(self._key)
        if specs:
            pipeline.hset(
                self._key, mapping={spec.model: msgspec.json.encode(spec) for spec in specs}
            )


LETHAL = "the neuron ended while it read this model's tokenizer, and does not load it again"


class PersistedSpecs:
    def __init__(self, specs: SpecStore, replicas: Replicas, context: ReplicaContext) -> None:
        self._specs = specs
        self._replicas = replicas
        self._context = context
        self._is_restored = False

    def restore(self) -> None:
        """Reloads the previous instance's models once, the most recently used first, in case not
        all have room. A model that was requested since then keeps its new spec. Raises
        ``redis.RedisError``."""
        if self._is_restored:
            return
        specs = self._specs.read()
        ordered = sorted((spec for spec in specs if spec.order), key=_last_used_first)
        lethal = self._lethal(ordered)
        restored = self._replicas.restore(ordered, self._context, lethal)
        self._is_restored = True
        for replica in restored:
            if replica.spec.model in lethal:
                log.error(
                    "%s is not loaded again: it ended the previous instance", replica.spec.model
                )
                replica.refuse(LoadFailure(code="bad_file", message=LETHAL))
                continue
            log.info("loading %s again: the previous instance had it", replica.spec.model)
            replica.keep_room()
            replica.start()
        if others := [spec.model for spec in specs if not spec.order]:
            log.warning("not loaded again, saved without an order: %s", ", ".join(others))

    def _lethal(self, specs: Iterable[LoadSpec]) -> set[str]:
        """The models that the previous instance was reading, and nothing else, when it died."""
        marks = self._context.marks.earlier
        return {
            spec.model
            for spec in specs
            if not blame(marks, [load_mark(spec.model)], 0).may_deliver_again
        }

    def queue(self, pipeline: Pipeline) -> None:
        """Adds them to the transaction of a heartbeat, so that a reader of a failed load no longer
        finds its persisted spec."""
        self._specs.queue(pipeline, self._replicas.persisted_specs())

    def save(self) -> None:
        """Save the specs of loaded models when they change. Does nothing before ``restore`` has
        read the old ones."""
        if not self._is_restored:
            return
        try:
            self._specs.write(self._replicas.persisted_specs())
        except redis.RedisError as error:
            log.warning("load specs are not saved yet: %s", error)  # the next heartbeat does


def _last_used_first(spec: LoadSpec) -> tuple[float, str]:
    return (-(spec.last_used_unix_s or 0.0), spec.model)
