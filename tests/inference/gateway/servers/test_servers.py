"""The application under Daphne, as a process: what its server answers, cuts off and has recorded,
with real clients, and how it ends: its drain, a second signal, a port in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import websockets
from django.conf import settings

from benchmarks.ports import free_port
from fleet.services import default_model_ensure
from helexa_site.program import REPOSITORY_DIR
from inference.protocol import keys
from inference.protocol.events import Accepted, Delta, Event
from inference.protocol.generation import Submit
from metering.audit import COMMAND
from tests.cases import each_case
from tests.inference.gateway.bodies import gated
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts, endless, paris
from tests.migrated_database import MakeSqlite

pytestmark = pytest.mark.slow
START_TIMEOUT_S = 120.0
MODEL = "smollm2-135m-instruct"
"""The default model."""
MAX_BODY_BYTES = 50_000
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
CREATE = {"type": "response.create", "model": MODEL, "input": "Hi", "store": False}
LONG = "x" * 100_000
KEY = f"hx-0123456789-{32 * 'x'}"
UNKNOWN = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\nTransfer-Encoding: chunked"
LARGE = f"Host: localhost\r\nContent-Length: {MAX_BODY_BYTES + 1}"


@dataclass
class RunningServer:
    process: subprocess.Popen[bytes]
    port: int
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **more: Any) -> httpx.AsyncClient:
        """A patient one: the first page that a process serves imports all of them."""
        return httpx.AsyncClient(base_url=self.url, timeout=GENEROUS_S, **more)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def command(port: int) -> list[str]:
    code = (
        "import django; django.setup();"
        "from django.core.management import call_command;"
        f"call_command('gateway', '--port', '{port}')"
    )
    return [sys.executable, "-c", code]


def start(env: dict[str, str], log: Path, *, num_descriptors: int | None = None) -> RunningServer:
    """``num_descriptors``: the limit of its file descriptors, soft and hard."""
    port = free_port()
    words = command(port)
    if num_descriptors is not None:
        words = ["sh", "-c", f'ulimit -n {num_descriptors} && exec "$@"', "sh", *words]
    with log.open("wb") as output:
        process = subprocess.Popen(words, cwd=REPOSITORY_DIR, env=env, stdout=output, stderr=output)
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while not accepts_connections(port):
        assert process.poll() is None and time.monotonic() < give_up_s, log.read_text()
        time.sleep(0.05)
    return RunningServer(process, port, env)


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


async def served_by(neuron: FakeNeuron, server: RunningServer) -> None:
    """Returns once the server's requests are answered by this neuron, whose script stays."""
    await neuron.beat()
    script, neuron.script = neuron.script, paris

    async def is_served(client: httpx.AsyncClient) -> bool:
        try:
            return (await client.post(CHAT, json=ASKED)).status_code == 200
        except httpx.TransportError:  # a server with short deadlines has closed an idle connection
            return False

    async with server.client() as client, asyncio.timeout(60):
        while not await is_served(client):
            await asyncio.sleep(0.05)
    neuron.script = script


@pytest.fixture(scope="module")
def environment(redis_server_url: str, make_sqlite: MakeSqlite) -> dict[str, str]:
    """A database of its own that holds the default model."""
    data_dir = make_sqlite(lambda: default_model_ensure(actor=COMMAND)).parent
    env = os.environ | {
        "HELEXA_DATA_DIR": str(data_dir),
        "REDIS_URL": redis_server_url,
        "HELEXA_LISTEN_HOST": "127.0.0.1",
        "HELEXA_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        # Fake neurons show marks of loads that are signed with this process's key.
        "HELEXA_SECRET_KEY": str(settings.SECRET_KEY),
    }
    env.pop("DATABASE_URL", None)
    return env


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: Any) -> Iterator[RunningServer]:
    running = start(environment, tmp_path_factory.mktemp("log") / "server.log")
    yield running
    running.stop()


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """Removes what earlier tests' neurons wrote, except the streams of their events: those are a
    running gateway's, which fails the requests that wait for one when it is gone."""
    with redis.Redis.from_url(redis_server_url) as client:
        kept = set(client.keys(keys.events_key("*", "*")))
        for key in client.keys("helexa:neuron*"):
            if key not in kept:
                client.delete(key)
    return redis_server_url


@pytest.fixture
def ready(neuron: FakeNeuron) -> FakeNeuron:
    neuron.model = MODEL
    return neuron


def websocket(server: RunningServer, **more: Any) -> Any:
    # Compressed, what the flood sends would fit into the buffers.
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    return websockets.connect(url, proxy=None, compression=None, **more)


async def test_what_a_client_does_not_take_is_bounded(
    server: RunningServer, ready: FakeNeuron
) -> None:
    """The request fails once that is full."""
    ready.script = flood
    await served_by(ready, server)
    body = json.dumps(ASKED | {"stream": True})
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write((head + body).encode())
    await reader.readline()
    await asyncio.wait_for(ready.cancelled.get(), 60)
    writer.close()
    async with websocket(server) as connection:
        await connection.send(json.dumps(CREATE))
        connection.transport.pause_reading()
        assert await asyncio.wait_for(ready.cancelled.get(), 60)
        connection.transport.abort()


async def recorded(server: RunningServer, request_id: str) -> tuple[Any, ...]:
    """Returns the status, code and endpoint of that request's record, once it is written."""
    query = "SELECT status, code, endpoint FROM metering_requestrecord WHERE request_id = ?"
    database = Path(server.env["HELEXA_DATA_DIR"]) / "helexa.sqlite3"
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as opened:
        async with asyncio.timeout(60):
            while not (found := opened.execute(query, [uuid.UUID(request_id).hex]).fetchall()):
                await asyncio.sleep(0.1)
    (row,) = found
    return tuple(row)


@each_case(
    ("head", "status", "code", "endpoint"),
    [
        (f"GET /v1/nothing?{LONG} HTTP/1.1\r\nHost: localhost", 414, "uri_too_long", "unknown"),
        (f"POST {CHAT} HTTP/1.1\r\n{LARGE}", 413, "request_too_large", CHAT),
        (f"POST {CHAT} HTTP/1.1\r\n{UNKNOWN}", 401, "invalid_api_key", CHAT),
    ],
    ids=["a long target", "large", "no key"],
)
async def test_a_head_is_answered_and_recorded_before_its_body_is_read(
    server: RunningServer, head: str, status: int, code: str, endpoint: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    chunk = f"3e8\r\n{1000 * 'x'}\r\n" if "chunked" in head else ""
    writer.write(f"{head}\r\n\r\n{chunk}".encode())
    async with asyncio.timeout(60):
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    writer.close()
    assert answer.startswith(b"http/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == code
    request_id = answer.partition(b"\r\nx-request-id: ")[2].split(b"\r\n")[0].decode()
    assert await recorded(server, request_id) == (status, code, endpoint)


async def test_what_is_not_the_apis(server: RunningServer, ready: FakeNeuron) -> None:
    await served_by(ready, server)
    async with server.client() as client:
        large = await client.post("/api/keys", content=b"x" * 2 * MAX_BODY_BYTES)
        status, *_ = await recorded(server, large.headers["x-request-id"])
        assert large.status_code == status == 413
        # The server would read a form whole and answer in no dialect.
        kind = {"content-type": "multipart/form-data"}
        refused = await client.post(CHAT, content=b"not a form", headers=kind)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_json")
        health = await client.get("/health", headers={"connection": "Upgrade", "upgrade": "h2c"})
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        home = await client.get("/")
        assert (home.status_code, home.headers["location"]) == (302, "/login/")
    with pytest.raises(websockets.InvalidStatus) as handshake:
        async with websocket(server, additional_headers={"authorization": f"Bearer {KEY}"}):
            pass
    response = handshake.value.response
    status, *_ = await recorded(server, response.headers["x-request-id"])
    assert response.status_code == status == 403


async def flood(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
    while True:
        yield [Delta(request_id=submit.request_id, text="x" * 2000) for _ in range(50)]
        await asyncio.sleep(0.005)


@asynccontextmanager
async def draining(
    environment: dict[str, str], neuron: FakeNeuron, log: Path
) -> AsyncIterator[tuple[RunningServer, httpx.Response]]:
    """A server that got SIGTERM and has a stream open. It must end with 0."""
    running = await asyncio.to_thread(start, environment, log)
    body = ASKED | {"stream": True}
    try:
        await served_by(neuron, running)
        async with running.client() as client, client.stream("POST", CHAT, json=body) as response:
            running.process.send_signal(signal.SIGTERM)
            while accepts_connections(running.port):
                await asyncio.sleep(0.02)
            yield running, response
        assert await asyncio.to_thread(running.process.wait, 60) == 0
    finally:
        running.process.kill()


async def test_drain(environment: dict[str, str], ready: FakeNeuron, tmp_path: Path) -> None:
    may_end, port = asyncio.Event(), free_port()
    ready.script = gated(may_end)
    scraped = environment | {"HELEXA_METRICS_LISTEN": f"127.0.0.1:{port}"}
    async with draining(scraped, ready, tmp_path / "log") as (_, response):
        metrics = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/metrics")
        may_end.set()
        answer = await response.aread()
    tokens = f'cortex_completion_tokens_total{{model="{MODEL}",node="beast"}} 5.0'
    assert {tokens, "helexa_requests_open 1.0"} <= {*metrics.text.splitlines()}
    assert answer.endswith(b"data: [DONE]\n\n") and b"ris" in answer


async def test_two_signals(environment: dict[str, str], ready: FakeNeuron, tmp_path: Path) -> None:
    ready.script = accepts
    patient = environment | {"HELEXA_DRAIN_SECONDS": "3600"}
    async with draining(patient, ready, tmp_path / "log") as (running, response):
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert b"shutting_down" in await response.aread()


def test_a_port_in_use_is_one_line_and_exit_code_1(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = command(taken.getsockname()[1])
        run = subprocess.run(
            words, cwd=REPOSITORY_DIR, env=environment, capture_output=True, timeout=60, check=False
        )
    assert run.returncode == 1
    assert b"cannot listen" in run.stderr and b"Traceback" not in run.stderr


NUM_DRIPPING = 100
"""The number of slow clients of each kind."""
NUM_DESCRIPTORS = 128
NUM_CONNECTIONS = 200
GENEROUS_S = 120.0
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
UPLOAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


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


async def test_clients_that_drip_get_a_408(environment: dict[str, str], tmp_path: Path) -> None:
    names = ("HELEXA_HEAD_TIMEOUT_S", "HELEXA_BODY_TIMEOUT_S", "HELEXA_IDLE_TIMEOUT_S")
    more = {"HELEXA_MAX_BODY_BYTES": "10000000", **dict.fromkeys(names, "2")}
    server = await asyncio.to_thread(start, environment | more, tmp_path / "log")
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
    server.stop()


async def test_many_streams(environment: dict[str, str], ready: FakeNeuron, tmp_path: Path) -> None:
    """At a server with few file descriptors."""
    ready.script = endless
    log = tmp_path / "log"
    poor_server = await asyncio.to_thread(start, environment, log, num_descriptors=NUM_DESCRIPTORS)
    await served_by(ready, poor_server)
    body = ASKED | {"stream": True}
    async with (
        AsyncExitStack() as open_streams,
        poor_server.client(limits=httpx.Limits(max_connections=None)) as client,
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
    await served_by(ready, poor_server)
    poor_server.stop()
    assert f"of {NUM_DESCRIPTORS}" in log.read_text()
