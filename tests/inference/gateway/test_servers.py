"""The same application under Daphne and uvicorn, as processes, with real clients."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
import websockets

from fleet.services import default_model_ensure
from helexa_site.config import REPOSITORY_DIR
from inference.protocol.events import Accepted, Delta, Event
from inference.protocol.generation import ChatInput, Submit
from metering.actor import COMMAND
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.running_server import (
    RunningServer,
    accepts_connections,
    command,
    gateway_environment,
    start,
)
from tests.migrated_database import MakeSqlite

MODEL = "smollm2-135m-instruct"
MAX_BODY_BYTES = 50_000
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def environment(redis_server_url: str, make_sqlite: MakeSqlite) -> dict[str, str]:
    """A database of its own that holds the default model."""
    data_dir = make_sqlite(lambda: default_model_ensure(actor=COMMAND)).parent
    return gateway_environment(data_dir, redis_server_url, max_body_bytes=MAX_BODY_BYTES)


@pytest.fixture(scope="module", params=["daphne", "uvicorn"])
def server(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path_factory: Any
) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    running = start(request.param, environment, log)
    yield running
    running.process.terminate()
    running.process.wait(60)


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """Only neurons' keys go: a running gateway keeps its own."""
    with redis.Redis.from_url(redis_server_url) as client:
        for key in client.keys("helexa:neuron*"):
            client.delete(key)
    return redis_server_url


@pytest.fixture
def ready(neuron: FakeNeuron) -> FakeNeuron:
    neuron.model = MODEL
    return neuron


async def _settle(neuron: FakeNeuron) -> None:
    """Until the gateway has a snapshot with this neuron in it."""
    await neuron.beat()
    await asyncio.sleep(0.5)


async def test_the_openai_sdk_streams_and_does_not(
    server: RunningServer, ready: FakeNeuron
) -> None:
    await _settle(ready)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert answer.choices[0].message.content == "The capital is Paris."
        stream = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "The capital is Paris."
        assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 12
        listed = await client.models.list()
        assert [model.id for model in listed.data] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="huge", messages=QUESTION)
        assert unknown.value.code == "model_not_found"


async def test_the_sdk_raises_on_an_error_within_a_stream(
    server: RunningServer, ready: FakeNeuron
) -> None:
    async def breaks(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        yield [Delta(request_id=submit.request_id, text="The")]
        ready.sequence_numbers[submit.gateway_id] += 1
        yield [Delta(request_id=submit.request_id, text="lost")]

    ready.script = breaks
    await _settle(ready)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        with pytest.raises(openai.APIError, match="lost"):
            _ = [chunk async for chunk in stream]


async def test_closing_the_connection_cancels(server: RunningServer, ready: FakeNeuron) -> None:
    ready.script = endless
    await _settle(ready)
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    async with server.client() as client:
        async with client.stream("POST", CHAT, json=body) as response:
            async for _ in response.aiter_bytes():
                break
    request_id = await asyncio.wait_for(ready.cancelled.get(), 60)
    assert request_id == response.headers["x-request-id"]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, {"code": "request_too_large"}),
        ("/v1/messages", {"type": "request_too_large"}),
    ],
)
async def test_a_body_over_the_limit(
    server: RunningServer, declared: bool, path: str, expected: dict[str, str]
) -> None:
    body = b"x" * (4 * MAX_BODY_BYTES)

    async def pieces() -> AsyncIterator[bytes]:
        for offset in range(0, len(body), 10_000):
            yield body[offset : offset + 10_000]

    async with server.client() as client:
        response = await client.post(path, content=body if declared else pieces())
    assert response.status_code == 413
    assert expected.items() <= response.json()["error"].items()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, {"code": "invalid_api_key"}),
        ("/v1/messages", {"type": "authentication_error"}),
    ],
)
async def test_a_body_is_not_read_for_whoever_may_not_ask(
    server: RunningServer, path: str, expected: dict[str, str]
) -> None:
    """Most of it has not been sent when the refusal comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    unknown = "hx-0123456789-" + 32 * "x"
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {unknown}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n3e8\r\n".encode()
        + b"x" * 1000
        + b"\r\n"
    )
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    assert head.startswith(b"http/1.1 401 ")
    assert expected.items() <= json.loads(body)["error"].items()
    writer.close()


@pytest.mark.parametrize("server", ["daphne"], indirect=True)
@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        ("GET /v1/nothing?{long} HTTP/1.1\r\nHost: localhost", 414, "uri_too_long"),
        ("GET /v1/nothing HTTP/1.1\r\nA: {long}", 431, "headers_too_large"),
        ("GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nA B: x", 400, "invalid_http"),
        ("GET http://localhost/v1/nothing HTTP/1.1\r\nHost: a.b", 404, "unknown_url"),
    ],
)
async def test_every_head_is_answered(
    server: RunningServer, head: str, status: int, code: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.format(long="x" * 100_000).encode() + b"\r\n\r\n")
    async with asyncio.timeout(60):
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answered.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    assert answered.startswith(b"http/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == code
    writer.close()


async def test_a_form_is_the_applications_to_refuse(server: RunningServer) -> None:
    """Not the server's, which would read it whole and answer in no dialect."""
    async with server.client() as client:
        kind = {"content-type": "multipart/form-data"}
        response = await client.post(CHAT, content=b"not a form", headers=kind)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def flood(submit: Submit) -> AsyncIterator[list[Event]]:
    yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
    while True:
        yield [Delta(request_id=submit.request_id, text="x" * 2000) for _ in range(50)]
        await asyncio.sleep(0.005)


async def test_a_reader_that_stalls_is_cut_off_and_nobody_else(
    server: RunningServer, ready: FakeNeuron
) -> None:
    """What a client does not take is bounded: the request fails once that is full."""
    ready.script = flood
    await _settle(ready)
    body = json.dumps({"model": MODEL, "messages": QUESTION, "stream": True}).encode()
    request = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write(request)
    await reader.readline()
    await asyncio.wait_for(ready.cancelled.get(), 60)
    writer.close()
    async with server.client() as client:
        assert (await client.get("/health")).status_code == 200


async def test_the_openai_sdk_over_a_websocket(server: RunningServer, ready: FakeNeuron) -> None:
    await _settle(ready)
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client,
        client.responses.connect() as connection,
    ):
        previous: str | None = None
        for question in ("What is the capital of France?", "And of Italy?"):
            await connection.response.create(
                model=MODEL, input=question, store=False, previous_response_id=previous
            )
            async for event in connection:
                if event.type == "response.completed":
                    assert event.response.output_text == "The capital is Paris."
                    previous = event.response.id
                    break
    frame = ready.frames[-1]
    assert isinstance(frame, Submit) and isinstance(frame.request.input, ChatInput)
    assert len(frame.request.input.messages) == 3


def _socket(server: RunningServer, path: str = "/v1/responses") -> Any:
    # Compressed, what the flood sends would fit into the buffers.
    url = f"ws://127.0.0.1:{server.port}{path}"
    return websockets.connect(url, proxy=None, compression=None)


CREATE = {"type": "response.create", "model": MODEL, "input": "Hi", "store": False}


async def test_leaving_a_websocket_cancels(server: RunningServer, ready: FakeNeuron) -> None:
    ready.script = endless
    await _settle(ready)
    async with _socket(server) as connection:
        await connection.send(json.dumps(CREATE))
        while "delta" not in json.loads(await connection.recv()):
            pass
    assert await asyncio.wait_for(ready.cancelled.get(), 60)


async def test_a_websocket_that_is_refused(server: RunningServer, ready: FakeNeuron) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with _socket(server, "/v1/chat/completions"):
            pass
    assert refused.value.response.status_code == 403
    await _settle(ready)
    async with server.client() as client:
        headers = {"connection": "Upgrade", "upgrade": "h2c"}
        assert (await client.get("/health", headers=headers)).json()["status"] == "ok"


async def test_a_message_over_the_limit(server: RunningServer, ready: FakeNeuron) -> None:
    async with _socket(server) as connection:
        await connection.send(json.dumps(CREATE | {"input": "x" * 20 * MAX_BODY_BYTES}))
        with pytest.raises(websockets.ConnectionClosed):
            while True:
                expected = json.loads(await asyncio.wait_for(connection.recv(), 60))
                assert expected["code"] == "request_too_large"
    assert connection.close_code == 1009


async def test_a_websocket_whose_reader_stalls_is_cut_off(
    server: RunningServer, ready: FakeNeuron
) -> None:
    ready.script = flood
    await _settle(ready)
    async with _socket(server) as connection:
        await connection.send(json.dumps(CREATE))
        connection.transport.pause_reading()
        assert await asyncio.wait_for(ready.cancelled.get(), 60)
        connection.transport.abort()


async def test_health_and_unknown_paths(server: RunningServer, ready: FakeNeuron) -> None:
    await _settle(ready)
    async with server.client() as client:
        health = await client.get("/health")
        assert health.status_code == 200 and health.json()["status"] == "ok"
        assert (await client.get("/v1/nothing")).json()["error"]["code"] == "unknown_url"
        home = await client.get("/")
        assert (home.status_code, home.headers["location"]) == (302, "/login/")


async def test_daphne_drains(
    environment: dict[str, str], ready: FakeNeuron, tmp_path: Path
) -> None:
    """SIGTERM: what is open finishes, what is new is refused, and the process ends with 0."""
    go_on = asyncio.Event()

    async def waits(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        await go_on.wait()
        async for events in paris(submit):
            if not isinstance(events[0], Accepted):
                yield events

    ready.script = waits
    await _settle(ready)
    running = await asyncio.to_thread(start, "daphne", environment, tmp_path / "log")
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    try:
        async with running.client() as client:
            async with client.stream("POST", CHAT, json=body) as response:
                running.process.send_signal(signal.SIGTERM)
                while accepts_connections(running.port):
                    await asyncio.sleep(0.02)
                go_on.set()
                answer = await response.aread()
        assert answer.endswith(b"data: [DONE]\n\n") and b" Pari" in answer
        assert await asyncio.to_thread(running.process.wait, 60) == 0
    finally:
        running.process.kill()


async def test_a_second_signal_ends_a_drain_at_once(
    environment: dict[str, str], ready: FakeNeuron, tmp_path: Path
) -> None:
    """The drain alone would last for an hour."""

    async def never_ends(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        await asyncio.Event().wait()

    ready.script = never_ends
    await _settle(ready)
    patient = environment | {"HELEXA_DRAIN_SECONDS": "3600"}
    running = await asyncio.to_thread(start, "daphne", patient, tmp_path / "log")
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    try:
        async with running.client() as client:
            async with client.stream("POST", CHAT, json=body) as response:
                running.process.send_signal(signal.SIGTERM)
                while accepts_connections(running.port):
                    await asyncio.sleep(0.02)
                assert running.process.poll() is None
                running.process.send_signal(signal.SIGTERM)
                assert b"shutting_down" in await response.aread()
        assert await asyncio.to_thread(running.process.wait, 60) == 0
    finally:
        running.process.kill()


def test_a_port_in_use_is_one_line_and_exit_code_1(environment: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = subprocess.run(
            command("daphne", taken.getsockname()[1]),
            cwd=REPOSITORY_DIR,
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 1
    assert b"cannot listen" in run.stderr and b"Traceback" not in run.stderr
