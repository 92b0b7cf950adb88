"""Who is refused and why: what all gateways have counted together."""

from __future__ import annotations

import time

import redis

from inference.protocol.refusals import Refused, newest_keys, sum_of


def read_refusals(client: redis.Redis, *, hours: int) -> dict[Refused, int]:
    """Refusals of so many hours, the present one included; at most a day. Raises
    ``redis.RedisError``."""
    pipeline = client.pipeline(transaction=False)
    for key in newest_keys(time.time(), hours):
        pipeline.hgetall(key)
    return sum_of(pipeline.execute())
