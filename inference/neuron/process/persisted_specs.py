"""Persists the specs of loaded models in Redis, so that this neuron's next instance reloads them.

The neuron's memory is the truth; the hash mirrors it and is written again with every heartbeat, so
a Redis that came back empty holds it a second later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec
import redis
from redis.client import Pipeline

from inference.neuron.replicas.by_model import Replicas
from inference.neuron.replicas.context import ReplicaContext
from inference.protocol.held import blame, load_mark
from inference.protocol.keys import specs_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_progress import LoadFailure

log = logging.getLogger(__name__)


class SpecStore:
    def __init__(self, client: redis.Redis, *, neuron: str) -> None:
        self._client = client
        self._key = specs_key(neuron)

    def read(self) -> list[LoadSpec]:
        """What the last life had loaded. Raises ``redis.RedisError``."""
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
        """``write`` as a part of another transaction."""
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
                log.error("%s is not loaded again: the last life ended of it", replica.spec.model)
                replica.refuse(LoadFailure(code="bad_file", message=LETHAL))
                continue
            log.info("loading %s again: the last life of this neuron had it", replica.spec.model)
            replica.keep_room()
            replica.start()
        if others := [spec.model for spec in specs if not spec.order]:
            log.warning("not loaded again, saved without an order: %s", ", ".join(others))

    def _lethal(self, specs: Iterable[LoadSpec]) -> set[str]:
        """The models that the last life was reading, and nothing else, when it died."""
        marks = self._context.marks.earlier
        return {
            spec.model
            for spec in specs
            if not blame(marks, [load_mark(spec.model)], 0).may_deliver_again
        }

    def queue(self, pipeline: Pipeline) -> None:
        """Adds them to the transaction of a heartbeat, so that a reader of a failed load no longer
        finds its persisted spec."""
        self._specs.queue(pipeline, self._replicas.surviving_specs())

    def save(self) -> None:
        """Save the specs of loaded models when they change. Does nothing before ``restore`` has
        read the old ones."""
        if not self._is_restored:
            return
        try:
            self._specs.write(self._replicas.surviving_specs())
        except redis.RedisError as error:
            log.warning("load specs are not saved yet: %s", error)  # the next heartbeat does


def _last_used_first(spec: LoadSpec) -> tuple[float, str]:
    return (-(spec.last_used_unix_s or 0.0), spec.model)
