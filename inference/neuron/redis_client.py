"""How this process talks to Redis: a short patience, and no repeats behind anybody's back."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET_TIMEOUT_S = 2.0


def connect(redis_url: str) -> redis.Redis:
    """Bytes in and out. A command is sent once: a repeated XADD would be a repeated event."""
    client: redis.Redis = redis.Redis.from_url(
        redis_url,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    return client
