"""The gateway's own connection to Redis, beside redis-py's and through losses; replies that are cut
anywhere are the same replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import pytest_asyncio
import redis
import redis.asyncio

from inference.redis_link import LuaScript, RedisLink, RedisOutage, ReplyBuffer, ReplyTooLargeError
from tests.cases import each_case
from tests.inference.gateway.conftest import GENEROUS_S

LONG_MS = int(GENEROUS_S * 500)
LIMIT_S = 30.0


@pytest_asyncio.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    made = RedisLink(redis_url, timeout_s=GENEROUS_S)
    yield made
    await made.aclose()


async def test_a_script_is_sent_once(link: RedisLink, redis_client: redis.asyncio.Redis) -> None:
    script = LuaScript("return {KEYS[1], ARGV[1], tonumber(ARGV[2]) + 1}")
    for _ in range(2):
        assert await link.run(script, keys=["key"], args=[b"\xff", 41]) == [b"key", b"\xff", 42]
    await redis_client.script_flush()
    assert await link.run(script, keys=["key"], args=["again", 0]) == [b"key", b"again", 1]
    with pytest.raises(redis.ResponseError):
        await link.run(LuaScript("return redis.call('NOTHING')"), keys=[], args=[])


async def test_commands_under_way(link: RedisLink, redis_client: redis.asyncio.Redis) -> None:
    lengths = await asyncio.gather(*(link.command("LPUSH", "list", n) for n in range(50)))
    assert lengths == list(range(1, 51))
    await link.command("SET", "number", 7)
    given_up = asyncio.ensure_future(link.command("GET", "number"))
    await asyncio.sleep(0)
    given_up.cancel()
    refused, number, two = await asyncio.gather(
        link.command("INCR", "list"),
        link.command("INCR", "number"),
        link.command("LRANGE", "list", -2, -1),
        return_exceptions=True,
    )
    assert isinstance(refused, redis.ResponseError) and "WRONGTYPE" in str(refused)
    assert (number, two, given_up.cancelled()) == (8, [b"1", b"0"], True)
    # A lost connection.
    number = await link.command("CLIENT", "ID")
    waiting = asyncio.create_task(link.xread({"none": "0-0"}, count=1, block=LONG_MS))
    async with asyncio.timeout(GENEROUS_S):
        while "b" not in (await redis_client.client_list(client_id=[str(number)]))[0]["flags"]:
            await asyncio.sleep(0.01)
    await redis_client.execute_command("CLIENT KILL ID", number)
    with pytest.raises(redis.ConnectionError):
        await waiting
    assert await link.command("PING") == b"PONG"


@asynccontextmanager
async def answering(reply: bytes | None) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that takes redis-py's greetings and gives ``reply`` to what comes then; ``None``
    hangs up at once. Its URL, and the ports of the clients that came. All must have left at the
    end."""
    serving: set[Any] = set()
    came: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        came.append(writer.get_extra_info("peername")[1])
        while reply is not None and (data := await reader.read(65536)):
            is_greeting = b"SETINFO" in data or b"SELECT" in data
            writer.write(b"+OK\r\n" * data.count(b"*") if is_greeting else reply)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", came
    finally:
        server.close()
        await asyncio.wait(serving)


async def test_errors(redis_url: str, redis_client: redis.asyncio.Redis) -> None:
    async def ping(url: str, error: type[Exception], words: str | None, timeout_s: float) -> None:
        link = RedisLink(url, timeout_s=timeout_s)
        with pytest.raises(error, match=words):
            await link.command("PING")
        await link.aclose()

    async with answering(b"") as (url, _):
        await ping(url, redis.TimeoutError, None, 0.2)
    async with answering(b"HTTP/1.1 400 Bad Request\r\n") as (url, _):
        await ping(url, redis.ConnectionError, "no Redis", GENEROUS_S)
    await ping("redis://127.0.0.1:1/0", redis.ConnectionError, None, GENEROUS_S)
    link = RedisLink(redis_url, timeout_s=GENEROUS_S, max_reply_bytes=200_000)
    await redis_client.set("large", b"x" * 4_000_000)
    with pytest.raises(ReplyTooLargeError):
        await link.command("GET", "large")
    assert await link.command("GET", "none") is None, "by another connection"
    await link.aclose()
    # Commands share an attempt to connect and its failure.
    async with answering(None) as (url, came):
        link = RedisLink(url, timeout_s=GENEROUS_S)
        for attempt in (1, 2):
            replies = await asyncio.gather(
                *(link.command("PING") for _ in range(9)), return_exceptions=True
            )
            assert all(isinstance(reply, redis.ConnectionError) for reply in replies)
            assert len(came) == attempt
        await link.aclose()


@each_case("stands_still", ["before Redis fails", "while Redis is away", "never"])
async def test_stalls_have_a_limit(monkeypatch: pytest.MonkeyPatch, stands_still: str) -> None:
    given_up: list[float] = []
    loop = Mock(**{"time.return_value": 0.0})
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        outage = RedisOutage(LIMIT_S, lambda: given_up.append(loop.time()))

    def advance(to_s: float) -> None:
        """The newest timer goes off, where it is due."""
        loop.time.return_value = to_s
        if loop.call_at.called and (due := loop.call_at.call_args.args)[0] <= to_s:
            loop.call_at.reset_mock()
            due[1]()

    outage.answered()
    paused_s = 0.0 if stands_still == "never" else 100.0
    if stands_still == "before Redis fails":
        advance(paused_s)
    outage.unanswered(ConnectionError("lost"))
    outage.unanswered(ConnectionError("lost"))
    if stands_still == "while Redis is away":
        advance(paused_s)
    advance(paused_s + LIMIT_S - 1)
    assert given_up == []
    advance(paused_s + LIMIT_S)
    assert given_up == [paused_s + LIMIT_S]


def test_replies_are_the_same_however_they_are_cut() -> None:
    whole = b"*4\r\n$-1\r\n:-7\r\n*1\r\n$4\r\n\r\n\0x\r\n$0\r\n\r\n:1\r\n"
    for size in range(1, len(whole)):
        buffer, read = ReplyBuffer(), list[Any]()
        for start in range(0, len(whole), size):
            read += buffer.feed(whole[start : start + size])
        assert read == [[None, -7, [b"\r\n\0x"], b""], 1]
    buffer = ReplyBuffer()
    ok, error, nothing = buffer.feed(b"+OK\r\n-ERR no such thing\r\n*-1\r\n")
    assert ok == b"OK" and nothing is None
    assert isinstance(error, redis.ResponseError) and str(error) == "ERR no such thing"
    with pytest.raises(redis.InvalidResponse):
        list(ReplyBuffer().feed(b"HTTP/1.1 400 Bad Request\r\n"))
    assert list(buffer.feed(b"*2\r\n$3\r\none\r\n$400\r\nx")) == []
    assert buffer.num_bytes == 20
    rest = b"x" * 399 + b"\r\n:1\r\n:2"
    assert list(buffer.feed(rest)) == [[b"one", b"x" * 400], 1]
    assert 2 <= buffer.num_bytes <= len(rest)
    assert list(buffer.feed(b"\r\n")) == [2]
    assert buffer.num_bytes == 0
