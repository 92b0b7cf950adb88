"""Connections to Redis, and one for what the gateway does with every request and every token.

Redis closes the largest of connections that together hold too much (``maxmemory-clients``). An
invited host may hold much, so those of gateways and controls are exempt (``CLIENT NO-EVICT``); the
user of an invited host may not ask for it.

``RedisLink`` connects as redis-py does, and then uses no task, pool, lock or timer for a command:
with redis-py's client one small reply costs the gateway as much as all else for its token.

    command ─▶ transport ─▶ Redis ─▶ data_received ─▶ the oldest waiting future
    script ─▶ EVALSHA ─ NOSCRIPT ─▶ EVAL

Raises redis-py's errors. Protocol: https://redis.io/docs/latest/develop/reference/protocol-spec.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from inference.backoff import Backoff

if TYPE_CHECKING:
    from inference.wire.errors import ServiceUnavailableError

logger = logging.getLogger(__name__)

MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_VALUE_BYTES = 4 * 1024 * 1024
"""``proto-max-bulk-len``. Chat templates in load messages are the largest values."""
MAX_CLIENTS_BYTES = 24 * 1024 * 1024
"""``maxmemory-clients``, for all connections together. Without it a client that does not read takes
all memory; an honest neuron's connections take a few MiB."""
NO_EVICT = ("CLIENT", "NO-EVICT", "ON")


def connect_exempt(connection: Any) -> None:
    """``redis_connect_func`` of redis-py's connections. Raises ``redis.RedisError``."""
    connection.on_connect()
    connection.send_command(*NO_EVICT)
    with _refusal_noted():
        connection.read_response()


async def connect_exempt_async(connection: Any) -> None:
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
    """Redis before 7 lacks the command, and no host can be invited."""
    logger.info(
        "Redis may close this process' connections where clients hold too much: %s", problem
    )


def redis_client(url: str, timeout_s: float) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(url, **connection_options(timeout_s))


def connection_options(timeout_s: float) -> dict[str, Any]:
    """They never repeat a command: only the caller knows whether it may come twice."""
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "redis_connect_func": connect_exempt_async,
    }


class ReplyTooLargeError(redis.ConnectionError):
    pass


class LuaScript:
    __slots__ = ("sha1", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha1 = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """Connects when it is first used, and again after a loss; commands under way then fail. Closes
    the connection after ``timeout_s`` without a reply. Belongs to one event loop."""

    def __init__(
        self, url: str, *, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        self._timeout_s = timeout_s
        self._max_reply_bytes = max_reply_bytes
        self._pool = redis.asyncio.ConnectionPool.from_url(url, **connection_options(timeout_s))
        self._connection: Any = None
        """redis-py's. It closes its transport when the last reference to it is gone."""
        self._protocol: LinkProtocol | None = None
        self._connecting = asyncio.Lock()
        self._connect_failure: redis.ConnectionError | None = None
        """It is never raised itself, so it holds no frames."""

    async def xread(
        self, streams: dict[str, str], *, count: int, block: int
    ) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
        """``block``, in milliseconds, must be shorter than the timeout."""
        reply = await self.command(
            *("XREAD", "COUNT", count, "BLOCK", block, "STREAMS"), *streams, *streams.values()
        )
        return [
            (name, [(entry_id, _as_dict(fields)) for entry_id, fields in entries])
            for name, entries in reply or ()
        ]

    async def run(
        self, script: LuaScript, *, keys: Sequence[str], args: Sequence[bytes | str | int]
    ) -> Any:
        """Sends the text only if Redis lacks it. Raises ``redis.RedisError`` or ``OSError``."""
        try:
            return await self.command("EVALSHA", script.sha1, len(keys), *keys, *args)
        except redis.ResponseError as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return await self.command("EVAL", script.text, len(keys), *keys, *args)

    async def command(self, *arguments: bytes | str | int) -> Any:
        """Cancelling leaves the connection as it is. Raises ``redis.RedisError`` or ``OSError``."""
        protocol = self._protocol
        if protocol is None or protocol.is_lost:
            protocol = await self._connect()
        packed = hiredis.pack_command(arguments)  # type: ignore[arg-type]  # its stub takes one word
        return await protocol.send(packed)

    async def aclose(self) -> None:
        if self._protocol is not None:
            self._protocol.close(redis.ConnectionError("the connection was closed"))
        await self._disconnect()

    async def _connect(self) -> LinkProtocol:
        """Commands that wait for an attempt to connect fail with it: each one's own attempt would
        make the last of them wait for as many timeouts."""
        earlier = self._connect_failure
        async with self._connecting:
            if self._protocol is not None and not self._protocol.is_lost:
                return self._protocol
            if self._connect_failure not in (None, earlier):
                raise redis.ConnectionError(str(self._connect_failure))
            try:
                self._protocol = await self._open()
            except (redis.RedisError, OSError) as error:
                self._connect_failure = redis.ConnectionError(str(error))
                raise
            self._connect_failure = None
            return self._protocol

    async def _open(self) -> LinkProtocol:
        await self._disconnect()
        self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        await self._connection.connect()
        transport = self._connection._writer.transport
        protocol = LinkProtocol(transport, self._timeout_s, self._max_reply_bytes)
        transport.set_protocol(protocol)
        return protocol

    async def _disconnect(self) -> None:
        connection, self._connection, self._protocol = self._connection, None, None
        if connection is not None:
            await connection.disconnect(nowait=True)


class LinkProtocol(asyncio.Protocol):
    def __init__(
        self, transport: asyncio.Transport, timeout_s: float, max_reply_bytes: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._timeout_s = timeout_s
        self._max_reply_bytes = max_reply_bytes
        self._replies = ReplyBuffer()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.is_lost = False

    def send(self, command: bytes) -> asyncio.Future[Any]:
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((waiter, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)
        self._transport.write(command)
        return waiter

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._replies.feed(data):
                waiter, _ = self._waiting.popleft()
                if waiter.done():
                    continue
                if isinstance(reply, redis.ResponseError):
                    waiter.set_exception(reply)
                else:
                    waiter.set_result(reply)
        except (redis.InvalidResponse, IndexError, ValueError) as error:
            self.close(redis.ConnectionError(f"Redis sent a reply to no command: {error}"))
        else:
            if self._replies.num_bytes > self._max_reply_bytes:
                most = self._max_reply_bytes
                self.close(ReplyTooLargeError(f"a reply of Redis has more than {most} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(redis.ConnectionError(f"the connection to Redis was lost: {exc or 'closed'}"))

    def close(self, error: redis.RedisError) -> None:
        self.is_lost = True
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for waiter, _ in waiting:
            if not waiter.done():
                waiter.set_exception(error)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        due_s = self._waiting[0][1] + self._timeout_s
        if self._loop.time() >= due_s:
            self.close(redis.TimeoutError("Redis does not answer"))
        else:
            self._timer = self._loop.call_at(due_s, self._look)


def _as_dict(fields: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(fields[::2], fields[1::2], strict=True))


class ReplyBuffer:
    """Parses replies of RESP2, cut anywhere: bulk strings and statuses are bytes, null is ``None``,
    and an error is a ``redis.ResponseError`` that is yielded, not raised."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """The bytes received of the reply that is not complete yet, or a little more."""
        self._reader = hiredis.Reader(
            protocolError=redis.InvalidResponse,
            replyError=redis.ResponseError,
        )

    def feed(self, data: bytes) -> Iterator[Any]:
        self._reader.feed(data)
        self.num_bytes += len(data)
        while (reply := self._reader.gets()) is not False:  # RESP2 has no False
            self.num_bytes = len(data)
            yield reply
        if not self._reader.has_data():
            self.num_bytes = 0


STOOD_STILL_S = 1.0
"""A timer that fires later than this shows that this process stood still."""


class RedisOutage:
    def __init__(self, limit_s: float, on_given_up: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._on_given_up = on_given_up
        self._answered_s = self._loop.time()
        self._is_answering = True
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def answered(self) -> None:
        if not self._is_answering:
            away_s = self._loop.time() - self._answered_s
            logger.warning("Redis answers again, after %.1f s", away_s)
        self._answered_s = self._loop.time()
        self._is_answering = True
        self.close()

    def unanswered(self, error: Exception) -> None:
        if not self._is_answering:
            return
        logger.warning("Redis does not answer (%s); waiting %.0f s for it", error, self._limit_s)
        self._is_answering = False
        self._wait()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        """Waits from now on: before, this process may have stood still itself."""
        self._due_s = self._loop.time() + self._limit_s
        self._timer = self._loop.call_at(self._due_s, self._give_up)

    def _give_up(self) -> None:
        if self._loop.time() - self._due_s > STOOD_STILL_S:
            self._wait()
            return
        logger.error("Redis has not answered for %.0f s: open requests fail", self._limit_s)
        self._on_given_up()


REDIS_BACKOFF = Backoff(first_s=0.1, max_s=1.0)


async def until_answered(ask: Callable[[], Awaitable[object]], *, give_up_s: float) -> None:
    """``give_up_s`` is on the event loop's clock. Raises ``redis.RedisError`` or ``OSError``."""
    loop, num_failures = asyncio.get_running_loop(), 0
    while True:
        try:
            await ask()
            return
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            if loop.time() >= give_up_s:
                raise
        num_failures += 1
        await asyncio.sleep(REDIS_BACKOFF.wait_s(num_failures))


def redis_unavailable() -> ServiceUnavailableError:
    # Imported here: `serve` and commands ask Redis as well, and answer no client.
    from inference.wire.errors import ServiceUnavailableError

    return ServiceUnavailableError("redis_unavailable", "Redis does not answer; try again shortly.")
