"""Clients that are slow, and clients that are many, at a real server with short deadlines."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx
import pytest
import websockets

from inference.protocol.events import Accepted, Delta, Event
from inference.protocol.generation import Submit
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.servers.running_server import (
    CHAT,
    MODEL,
    QUESTION,
    RunningServer,
    served_by,
    start,
)

pytestmark = pytest.mark.slow

TIMEOUT_S = 4
"""Clients that are to be in time may be kept waiting for half of it by a busy machine."""
LONGER_S = 7.0
"""A time longer than every deadline, and the second in which it is looked at."""
NUM_DRIPPING = 100
"""The number of slow clients of each kind."""
NUM_DESCRIPTORS = 128
NUM_CONNECTIONS = 200
GENEROUS_S = 120.0
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
UPLOAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def environment(environment: dict[str, str]) -> dict[str, str]:
    names = ("HELEXA_HEAD_TIMEOUT_S", "HELEXA_BODY_TIMEOUT_S", "HELEXA_IDLE_TIMEOUT_S")
    return (
        environment | dict.fromkeys(names, str(TIMEOUT_S)) | {"HELEXA_MAX_BODY_BYTES": "10000000"}
    )


@pytest.fixture
async def ready(ready: FakeNeuron, server: RunningServer) -> FakeNeuron:
    await served_by(ready, server)
    return ready


async def _drip(server: RunningServer, beginning: bytes, drop: bytes) -> bytes:
    """The answer, until it is cut off, to a client that sends a few bytes a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(beginning)

    async def dripping() -> None:
        while True:
            writer.write(drop)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(dripping())
    answered = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(GENEROUS_S):
            while piece := await reader.read(65_536):
                answered += piece
    task.cancel()
    writer.close()
    return answered


async def test_clients_that_drip_get_a_408_and_are_closed(server: RunningServer) -> None:
    dripping = [(HEAD, b"a: b\r\n"), (UPLOAD % 1_000_000, b"x"), (UPLOAD % 1000, b"x")]
    answers = await asyncio.gather(
        *(_drip(server, *client) for client in dripping for _ in range(NUM_DRIPPING))
    )
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


async def test_a_silent_connection_is_closed_without_an_answer(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await asyncio.wait_for(reader.read(), GENEROUS_S) == b""
    writer.close()


async def test_a_connection_that_was_used_is_closed_when_it_idles(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"\r\n" + HEAD + b"\r\n")  # the second is in the buffer already
    answered = await asyncio.wait_for(reader.read(), GENEROUS_S)
    assert answered.count(b'{"status":') == 2
    assert b"408" not in answered
    writer.close()


async def test_a_slow_upload_that_continues_is_read(
    server: RunningServer, ready: FakeNeuron
) -> None:
    body = json.dumps({"model": MODEL, "messages": QUESTION}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield body
        for _ in range(12):
            yield b" " * 5000
            await asyncio.sleep(LONGER_S / 10)

    async with server.client() as client:
        answer = await client.post(CHAT, content=pieces())
    assert answer.status_code == 200, answer.text


async def quiet(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    yield [Delta(request_id=submit.request_id, text="Well, ")]
    await asyncio.sleep(LONGER_S)
    async for events in paris(submit):
        if not isinstance(events[0], Accepted):
            yield events


async def test_an_answer_may_take_its_time(server: RunningServer, ready: FakeNeuron) -> None:
    ready.script = quiet
    body = {"model": MODEL, "messages": QUESTION}
    async with server.client() as client:
        answers = await asyncio.gather(
            *(client.post(CHAT, json=body | {"stream": stream}) for stream in (True, False))
        )
    for answer in answers:
        assert answer.status_code == 200
        assert b"s." in answer.content


async def test_a_websocket_may_be_quiet(server: RunningServer, ready: FakeNeuron) -> None:
    create = {"type": "response.create", "model": MODEL, "input": "Hi", "store": False}
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    async with websockets.connect(url, proxy=None) as connection:
        await asyncio.sleep(LONGER_S)
        await connection.send(json.dumps(create))
        async with asyncio.timeout(GENEROUS_S):
            while (event := json.loads(await connection.recv()))["type"] != "response.completed":
                assert event["type"] not in ("error", "response.failed"), event


@pytest.fixture
def poor_server(environment: dict[str, str], tmp_path: Path) -> Iterator[RunningServer]:
    """One with few file descriptors, whose clients may take their time."""
    patient = environment | {"HELEXA_HEAD_TIMEOUT_S": "60", "HELEXA_IDLE_TIMEOUT_S": "60"}
    running = start(patient, tmp_path / "log", num_descriptors=NUM_DESCRIPTORS)
    yield running
    running.stop()


async def test_more_streams_than_descriptors_are_refused_with_an_answer(
    poor_server: RunningServer, ready: FakeNeuron, tmp_path: Path
) -> None:
    ready.script = endless
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    limits = httpx.Limits(max_connections=None)
    codes: Counter[str] = Counter()
    async with (
        AsyncExitStack() as open_streams,
        httpx.AsyncClient(base_url=poor_server.url, timeout=GENEROUS_S, limits=limits) as client,
    ):

        async def ask() -> str:
            response = await open_streams.enter_async_context(
                client.stream("POST", CHAT, json=body)
            )
            if response.status_code == 200:
                await anext(response.aiter_bytes())
                return "streams"
            assert response.headers["retry-after"]
            code: str = json.loads(await response.aread())["error"]["code"]
            return code

        codes.update(await asyncio.gather(*(ask() for _ in range(NUM_CONNECTIONS))))
        assert codes.keys() == {"streams", "overloaded"}
        assert codes.total() == NUM_CONNECTIONS
        descriptors = Path(f"/proc/{poor_server.process.pid}/fd")
        assert len(list(descriptors.iterdir())) <= NUM_DESCRIPTORS
    ready.script = paris
    async with poor_server.client() as client, asyncio.timeout(GENEROUS_S):
        while (await client.post(CHAT, json=body)).status_code != 200:
            await asyncio.sleep(0.1)
    assert f"of {NUM_DESCRIPTORS}" in (tmp_path / "log").read_text()
