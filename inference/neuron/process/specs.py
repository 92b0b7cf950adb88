"""The load specs of loaded models, kept in Redis for this neuron's next instance.

The neuron's memory is the truth; the hash mirrors it and is written again with every heartbeat, so
a Redis that came back empty holds it a second later.
"""

from __future__ import annotations

import logging

import msgspec
import redis
from redis.client import Pipeline

from inference.protocol.keys import specs_key
from inference.protocol.load import LoadSpec

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
