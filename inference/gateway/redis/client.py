"""The gateway's client of Redis for commands with a short timeout."""

from __future__ import annotations

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from inference.redis_connections import connect_exempt_async


def redis_client(url: str, timeout_s: float) -> redis.asyncio.Redis:
    """Never repeats a command by itself: only the caller knows whether it may come twice."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        redis_connect_func=connect_exempt_async,
    )
