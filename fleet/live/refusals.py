"""Refused callers with reasons, summed over all gateways."""

from __future__ import annotations

import time
from collections.abc import Mapping

import redis

from inference.protocol.refusals import COUNTED_BY_KEY, Refused, by_code, newest_keys, sum_of


def read_refusals(client: redis.Redis, *, hours: int) -> dict[Refused, int]:
    """``only_refused`` of ``read_counts``. Raises ``redis.RedisError``."""
    return only_refused(read_counts(client, hours=hours))


def only_refused(counts: Mapping[Refused, int]) -> dict[Refused, int]:
    """Sums counts by code, without requests that crashed a worker: those are counted beside the
    refusals and have failed, see ``metering.ledger.entries``."""
    plain = by_code(counts)
    return {one: number for one, number in plain.items() if one.code not in COUNTED_BY_KEY}


def read_counts(client: redis.Redis, *, hours: int) -> dict[Refused, int]:
    """Counts of the last ``hours``, the present one included; at most a day. Raises
    ``redis.RedisError``."""
    pipeline = client.pipeline(transaction=False)
    for key in newest_keys(time.time(), hours):
        pipeline.hgetall(key)
    return sum_of(pipeline.execute())
