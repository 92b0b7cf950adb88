"""Which replica this neuron has of each model: at most one that is not on its way out.

``PersistedSpecs`` mirrors their specs in Redis, so that this neuron's next instance reloads them.
The neuron's memory is the truth; the hash is written again with every heartbeat, so a Redis that
came back empty holds it a second later.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

import msgspec
import redis
from redis.client import Pipeline

from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.replicas.record import ReplicaContext
from inference.neuron.replicas.replica import Replica
from inference.protocol.delivery import blame, load_mark
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.keys import specs_key
from inference.protocol.load import LoadSpec, spec_digest
from inference.protocol.load_report import LoadFailure

log = logging.getLogger(__name__)

LETHAL = "the neuron ended while it read this model's tokenizer, and does not load it again"


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
        """The neuron ends: none comes any more. Whether this call closed it."""
        with self._lock:
            was_open, self.is_closed = not self.is_closed, True
            return was_open

    def add(
        self, spec: LoadSpec, context: ReplicaContext, *, recovering: bool = False
    ) -> tuple[Replica | None, Replica | None]:
        """The replica that is to be started, and the one that it replaces. No new one where the
        model is here or on its way by that spec: that one is the new job's. ``recovering``: a
        previous instance had it, and what was requested since goes before that."""
        with self._lock:
            current = self._by_model.get(spec.model)
            if self.is_closed or (recovering and current is not None):
                return None, current
            if current is not None and _is_loaded_by(current, spec):
                if not current.is_resting:  # its waking is the new job's, its sleep is not
                    current.adopt_job(spec)
                return None, current
            replica = Replica(spec, context, recovering=recovering, predecessor=current)
            self._by_model[spec.model] = replica
            return replica, current

    def forget(self, load: Load) -> None:
        """Forgets the replica of that load, which is gone. One that has taken its place stays."""
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
        with self._client.pipeline(transaction=True) as pipeline:
            self.queue(pipeline, specs)
            pipeline.execute()

    def queue(self, pipeline: Pipeline, specs: list[LoadSpec]) -> None:
        pipeline.delete(self._key)
        if specs:
            pipeline.hset(
                self._key, mapping={spec.model: msgspec.json.encode(spec) for spec in specs}
            )


class PersistedSpecs:
    def __init__(self, store: SpecStore, replicas: Replicas, context: ReplicaContext) -> None:
        self._store = store
        self._replicas = replicas
        self._context = context
        self._is_restored = False

    def restore(self) -> None:
        """Reloads the previous instance's models once, the most recently used first, in case not
        all have room. A model that was requested since then keeps its new spec; what that instance
        was reading, and nothing else, when it died is not loaded. Raises ``redis.RedisError``."""
        if self._is_restored:
            return
        specs = self._store.read()
        marks = self._context.marks.earlier
        for spec in sorted(specs, key=lambda one: (-(one.last_used_unix_s or 0.0), one.model)):
            if not spec.order:
                log.warning("%s is not loaded again: it was saved without an order", spec.model)
                continue
            is_lethal = not blame(marks, [load_mark(spec.model)], 0).may_deliver_again
            replica, _ = self._replicas.add(spec, self._context, recovering=True)
            if replica is None:
                continue
            if is_lethal:
                log.error("%s is not loaded again: it ended the previous instance", spec.model)
                replica.refuse(LoadFailure(code="bad_file", message=LETHAL))
                continue
            log.info("loading %s again: the previous instance had it", spec.model)
            with contextlib.suppress(LoadRefusedError):  # which its thread will report
                self._context.loads.accept(replica.load)
            replica.start()
        self._is_restored = True

    def queue(self, pipeline: Pipeline) -> None:
        """Adds them to the transaction of a heartbeat, so that a reader of a failed load no longer
        finds its persisted spec."""
        self._store.queue(pipeline, self._specs())

    def save(self) -> None:
        """Save the specs of loaded models when they change. Does nothing before ``restore`` has
        read the old ones."""
        if not self._is_restored:
            return
        try:
            self._store.write(self._specs())
        except redis.RedisError as error:
            log.warning("load specs are not saved yet: %s", error)  # the next heartbeat does

    def _specs(self) -> list[LoadSpec]:
        specs = (replica.persisted_spec for replica in self._replicas.all())
        return [spec for spec in specs if spec is not None]
