"""Connections of gateways and controls, which Redis keeps when it closes others.

Redis bounds what all connections hold together (``maxmemory-clients``) and closes the largest. An
invited host may hold much of that, so theirs are exempt: ``CLIENT NO-EVICT``. The
user of an invited host may not ask for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

logger = logging.getLogger(__name__)

MAX_VALUE_BYTES = 4 * 1024 * 1024
"""The longest argument of a command, and so the longest value: ``proto-max-bulk-len``. Chat
templates in load messages are the largest; requests and images go in pieces."""
MAX_CLIENTS_BYTES = 24 * 1024 * 1024
"""The memory of all connections together: ``maxmemory-clients``. A client that asks and does not
read would take all memory otherwise. An honest neuron's take a few MiB, whatever it is sent."""
NO_EVICT = ("CLIENT", "NO-EVICT", "ON")


def connect_exempt(connection: Any) -> None:
    """``redis_connect_func`` of redis-py's connections. Raises ``redis.RedisError``."""
    connection.on_connect()
    connection.send_command(*NO_EVICT)
    with _refusal_noted():
        connection.read_response()


async def connect_exempt_async(connection: Any) -> None:
    """Does what ``connect_exempt`` does, for a connection of ``redis.asyncio``."""
    await connection.on_connect()
    await connection.send_command(*NO_EVICT)
    with _refusal_noted():
        await connection.read_response()


@contextmanager
def _refusal_noted() -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        _log_once(str(error))
    except redis.InvalidResponse as error:
        raise redis.ConnectionError(f"this is no Redis: {error}") from error


@cache
def _log_once(problem: str) -> None:
    """Logs the problem once. Before Redis 7 nothing is closed for its size, and no host can be
    invited."""
    logger.info(
        "Redis may close this process' connections where clients hold too much: %s", problem
    )


def redis_client(url: str, timeout_s: float) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(url, **connection_options(timeout_s))


def connection_options(timeout_s: float) -> dict[str, Any]:
    """Options of ``redis.asyncio`` connections. They never repeat a command by themselves: only the
    caller knows whether it may come twice."""
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "redis_connect_func": connect_exempt_async,
    }
