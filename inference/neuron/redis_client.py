"""How this process talks to Redis: a short patience, and no repeats behind anybody's back."""

from __future__ import annotations

import ssl

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET_TIMEOUT_S = 2.0


class RedisUntrustedError(Exception):
    """Redis shows a certificate that this host was not told of: waiting changes nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Redis shows a certificate that this host does not trust ({reason}). Where the "
            "certificate is another since this host was invited, run neurons invite on the "
            "gateway and join again by its line"
        )


def connect(redis_url: str) -> redis.Redis:
    """Bytes in and out. A command is sent once: a repeated XADD would be a repeated event."""
    client: redis.Redis = redis.Redis.from_url(
        redis_url,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    return client


def ensure_trusted(error: redis.RedisError) -> None:
    """Raises ``RedisUntrustedError`` where its certificate is why Redis was not reached."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise RedisUntrustedError(cause.verify_message) from error
