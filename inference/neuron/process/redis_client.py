"""How this process talks to Redis: a short patience, and no repeats behind anybody's back."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET_TIMEOUT_S = 2.0
REFUSED_LIMIT_S = 60.0


class RedisUntrustedError(Exception):
    """Redis has a certificate that this host does not trust: waiting changes nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Redis shows a certificate that this host does not trust ({reason}). Where the "
            "certificate is another since this host was invited, run neurons invite on the "
            "gateway and join again by its line"
        )


class InvitationVoidError(Exception):
    """Redis has refused this host's name and password for so long that waiting changes nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Redis refuses this host's name and password ({reason}): its invitation was revoked, "
            "or a newer one has replaced it. Run neurons invite on the gateway and join again by "
            "its line"
        )


class AccessRefusal:
    """Measures for how long Redis has refused this host without a break. A Redis that has just been
    started has no users of invited hosts until the control has made them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None

    def note(self, error: redis.RedisError | None) -> None:
        """Records the outcome of the last command. Raises ``InvitationVoidError``."""
        if not isinstance(error, redis.AuthenticationError):
            self._since_s = None
            return
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s >= REFUSED_LIMIT_S:
            raise InvitationVoidError(str(error)) from error


def connect(redis_url: str) -> redis.Redis:
    """Bytes in and out. A command is sent once: a repeated XADD would be a repeated event."""
    pool = redis.ConnectionPool.from_url(
        redis_url,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    return redis.Redis.from_pool(pool)


def ensure_trusted(error: redis.RedisError) -> None:
    """Raises ``RedisUntrustedError`` where its certificate is why Redis was not reached."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise RedisUntrustedError(cause.verify_message) from error
