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
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.servers.conftest import (
    ASKED,
    CREATE,
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


async def answered(server: RunningServer, beginning: bytes, drop: bytes) -> bytes:
    """The answer, until it is cut off, to a client that sends that drop a few times a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(beginning)

    async def dripping() -> None:
        while drop:
            writer.write(drop)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(dripping())
    received = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(GENEROUS_S):
            while piece := await reader.read(65_536):
                received += piece
    task.cancel()
    writer.close()
    return received


async def test_clients_that_drip_get_a_408(server: RunningServer) -> None:
    dripping = [(HEAD, b"a: b\r\n"), (UPLOAD % 1_000_000, b"x"), (UPLOAD % 1000, b"x")]
    twice = HEAD + b"\r\n" + HEAD + b"\r\n"  # the second is in the buffer already
    silent, used, *answers = await asyncio.gather(
        answered(server, b"", b""),
        answered(server, twice, b""),
        *(answered(server, *client) for client in dripping for _ in range(NUM_DRIPPING)),
    )
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert silent == b""
    assert used.count(b'{"status":') == 2 and b"408" not in used


async def quiet(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=7)]
    yield [Delta(request_id=submit.request_id, text="Well, ")]
    await asyncio.sleep(LONGER_S)
    async for events in paris(submit):
        if not isinstance(events[0], Accepted):
            yield events


async def test_what_may_take_its_time(server: RunningServer, ready: FakeNeuron) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield json.dumps(ASKED).encode()
        for _ in range(12):
            yield b" " * 5000
            await asyncio.sleep(LONGER_S / 10)

    ready.script = quiet
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    async with server.client() as client, websockets.connect(url, proxy=None) as connection:
        await connection.send(json.dumps(CREATE))
        answers = await asyncio.gather(
            client.post(CHAT, json=ASKED | {"stream": True}), client.post(CHAT, content=pieces())
        )
        async with asyncio.timeout(GENEROUS_S):
            while (event := json.loads(await connection.recv()))["type"] != "response.completed":
                assert event["type"] not in ("error", "response.failed"), event
    for answer in answers:
        assert (answer.status_code, b"s." in answer.content) == (200, True), answer.text


@pytest.fixture
def poor_server(environment: dict[str, str], tmp_path: Path) -> Iterator[RunningServer]:
    """One with few file descriptors, whose clients may take their time."""
    patient = environment | {"HELEXA_HEAD_TIMEOUT_S": "60", "HELEXA_IDLE_TIMEOUT_S": "60"}
    running = start(patient, tmp_path / "log", num_descriptors=NUM_DESCRIPTORS)
    yield running
    running.stop()


async def test_many_streams(poor_server: RunningServer, ready: FakeNeuron, tmp_path: Path) -> None:
    ready.script = endless
    body = ASKED | {"stream": True}
    limits = httpx.Limits(max_connections=None)
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

        codes = Counter(await asyncio.gather(*(ask() for _ in range(NUM_CONNECTIONS))))
        assert codes.keys() == {"streams", "overloaded"}
        descriptors = Path(f"/proc/{poor_server.process.pid}/fd")
        assert len(list(descriptors.iterdir())) <= NUM_DESCRIPTORS
    ready.script = paris
    async with poor_server.client() as client, asyncio.timeout(GENEROUS_S):
        while (await client.post(CHAT, json=body)).status_code != 200:
            await asyncio.sleep(0.1)
    assert f"of {NUM_DESCRIPTORS}" in (tmp_path / "log").read_text()
