"""Answers over real connections: each has its own bytes and times, and what it leaves behind."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from inference.gateway.upstreams import transport as transport_module
from inference.gateway.upstreams.transport import UpstreamResponse, UpstreamTransport
from tests.inference.gateway.upstreams.test_transport import (
    CHUNKED,
    EMPTY,
    PATIENCE_S,
    ask,
    head_of,
    read,
    serving,
    transport_of,
)


async def test_what_came_behind_an_answer_is_not_the_next_one() -> None:
    num_connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await head_of(reader)
        writer.write(EMPTY + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        await reader.read()
        writer.close()

    async with serving(handler) as port, transport_of() as transport:
        for _ in range(2):
            assert (await read(await ask(transport, f"http://127.0.0.1:{port}/"))) == b""
    assert num_connections == 2


async def post(
    transport: UpstreamTransport, port: int, until_s: float | None = None
) -> UpstreamResponse:
    url, headers = httpx2.URL(f"http://127.0.0.1:{port}/"), [(b"content-length", b"2")]
    return await transport.send(b"POST", url, headers, b"{}", until_s, with_part=True)


async def test_each_wait_of_a_request_is_bounded_by_its_own_time() -> None:
    goes_on = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        await goes_on.wait()
        writer.write(b"1\r\nb\r\n0\r\n\r\n")
        await head_of(reader)
        await reader.read()
        writer.close()

    now_s = asyncio.get_running_loop().time
    async with serving(handler) as port, transport_of() as transport:
        answer = await post(transport, port, now_s() + PATIENCE_S)
        assert await answer.next_part(now_s() + PATIENCE_S) == b"a"
        with pytest.raises(TimeoutError):
            await answer.next_part(now_s() + 0.05)
        with pytest.raises(TimeoutError):
            await answer.next_part(now_s() - 1)
        asyncio.get_running_loop().call_later(0.2, goes_on.set)
        assert await answer.next_part(now_s() + PATIENCE_S) == b"b", "the earlier times are over"
        assert await answer.next_part(now_s() + PATIENCE_S) is None
        answer.close()
        with pytest.raises(TimeoutError):
            await post(transport, port, now_s() + 0.05)
        assert not transport._open


async def test_a_success_is_given_with_some_of_its_body_and_everything_else_at_once() -> None:
    answers = [CHUNKED, b"HTTP/1.1 500 No\r\ncontent-length: 9\r\n\r\n", EMPTY]
    statuses: list[int] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answers[len(statuses)])
        if not statuses:
            await asyncio.sleep(0.05)
            writer.write(b"1\r\na\r\n")
        await reader.read()
        writer.close()

    async with serving(handler) as port, transport_of() as transport:
        async with asyncio.timeout(PATIENCE_S):
            for _ in answers:
                answer = await post(transport, port)
                if not statuses:
                    assert answer._connection._answer.has_part
                statuses.append(answer.status_code)
                transport._open.discard(answer._connection)
                answer._connection.abort()
    assert statuses == [200, 500, 200]


async def test_the_end_of_an_answer_that_is_left_is_waited_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        while await head_of(reader):
            writer.write(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(0.05)
            if num_connections == 1:
                writer.write(b"0\r\n\r\n")

    async def left(transport: UpstreamTransport, port: int) -> None:
        answer = await post(transport, port)
        assert await answer.next_part(None) == b"a"
        answer.close_drained()
        async with asyncio.timeout(PATIENCE_S):
            while transport._open:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(transport_module, "DRAIN_TIMEOUT_S", PATIENCE_S)
    async with serving(handler) as port, transport_of() as transport:
        await left(transport, port)
        await left(transport, port)
        assert num_connections == 1
        num_connections = 2  # no end comes any more
        monkeypatch.setattr(transport_module, "DRAIN_TIMEOUT_S", 0.01)
        await left(transport, port)
        assert not transport._idle
