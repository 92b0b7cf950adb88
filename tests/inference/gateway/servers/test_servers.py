"""The application under Daphne, as a process, with real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import websockets

from inference.protocol.events import Accepted, Delta, Event
from inference.protocol.generation import ChatInput, Submit
from inference.request_ids import new_request_id
from tests.cases import each_case
from tests.inference.gateway.fake_neuron import FakeNeuron, endless
from tests.inference.gateway.servers.running_server import (
    CHAT,
    MAX_BODY_BYTES,
    MODEL,
    QUESTION,
    RunningServer,
    served_by,
)

pytestmark = pytest.mark.slow


async def test_the_openai_sdk_streams_and_does_not(
    server: RunningServer, ready: FakeNeuron
) -> None:
    await served_by(ready, server)
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


async def test_closing_the_connection_cancels(server: RunningServer, ready: FakeNeuron) -> None:
    ready.script = endless
    await served_by(ready, server)
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    async with server.client() as client:
        async with client.stream("POST", CHAT, json=body) as response:
            async for _ in response.aiter_bytes():
                break
    request_id = await asyncio.wait_for(ready.cancelled.get(), 60)
    assert request_id == response.headers["x-request-id"]


@each_case("declared", [True, False])
@each_case(
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


async def answered(server: RunningServer, sent: bytes) -> tuple[bytes, dict[str, Any]]:
    """The head of the answer to the first bytes of a request, and its error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    writer.close()
    error: dict[str, Any] = json.loads(body)["error"]
    return head, error


@each_case(
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
    sent = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer hx-0123456789-{32 * 'x'}\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n3e8\r\n{1000 * 'x'}\r\n"
    )
    head, error = await answered(server, sent.encode())
    assert head.startswith(b"http/1.1 401 ")
    assert expected.items() <= error.items()


@each_case(
    ("head", "status", "code"),
    [
        ("GET /v1/nothing?{long} HTTP/1.1\r\nHost: localhost", 414, "uri_too_long"),
        ("GET /v1/nothing HTTP/1.1\r\nA: {long}", 431, "headers_too_large"),
        ("GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nA B: x", 400, "invalid_http"),
        ("GET http://localhost/v1/nothing HTTP/1.1\r\nHost: a.b", 404, "unknown_url"),
    ],
)
async def test_every_head_is_answered_and_recorded(
    server: RunningServer, head: str, status: int, code: str
) -> None:
    sent = head.format(long="x" * 100_000) + "\r\n\r\n"
    answer, error = await answered(server, sent.encode())
    assert answer.startswith(b"http/1.1 %d " % status)
    assert error["code"] == code
    request_id = answer.partition(b"\r\nx-request-id: ")[2].split(b"\r\n")[0].decode()
    assert uuid.UUID(hex=request_id).version == 7
    found = await recorded(server, "status, code, endpoint", "request_id = ?", request_id)
    assert found == (status, code, "unknown")


async def recorded(
    server: RunningServer, columns: str, where: str, *values: str
) -> tuple[Any, ...]:
    """Returns the columns of the only such record, once it is written."""
    query = f"SELECT {columns} FROM metering_requestrecord WHERE {where}"
    database = Path(server.env["HELEXA_DATA_DIR"]) / "helexa.sqlite3"
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as opened:
        async with asyncio.timeout(60):
            while not (found := opened.execute(query, values).fetchall()):
                await asyncio.sleep(0.1)
    (row,) = found
    return tuple(row)


async def test_leaving_before_the_body_is_whole_is_recorded(server: RunningServer) -> None:
    _reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/moderations HTTP/1.1\r\nHost: a.b\r\nContent-Length: 9\r\n\r\n{")
    await writer.drain()
    writer.close()
    found = await recorded(server, "status, outcome", "endpoint = ?", "/v1/moderations")
    assert found == (0, "cancelled")


async def test_a_handshake_that_is_none_is_recorded(server: RunningServer) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
    async with server.client() as client:
        refused = await client.get("/v1/responses", headers=upgrade)
    assert refused.status_code == 400
    request_id = uuid.UUID(refused.headers["x-request-id"]).hex
    found = await recorded(server, "status, code, endpoint", "request_id = ?", request_id)
    assert found == (400, "invalid_http", "/v1/responses")


async def test_a_form_is_the_applications_to_refuse(server: RunningServer) -> None:
    """The server would read it whole and answer in no dialect."""
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
    await served_by(ready, server)
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
    await served_by(ready, server)
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


def _socket(server: RunningServer, path: str = "/v1/responses", **more: Any) -> Any:
    # Compressed, what the flood sends would fit into the buffers.
    url = f"ws://127.0.0.1:{server.port}{path}"
    return websockets.connect(url, proxy=None, compression=None, **more)


CREATE = {"type": "response.create", "model": MODEL, "input": "Hi", "store": False}


async def test_leaving_a_websocket_cancels(server: RunningServer, ready: FakeNeuron) -> None:
    ready.script = endless
    await served_by(ready, server)
    async with _socket(server) as connection:
        await connection.send(json.dumps(CREATE))
        while "delta" not in (event := json.loads(await connection.recv())):
            assert event["type"] not in ("error", "response.failed"), event
    assert await asyncio.wait_for(ready.cancelled.get(), 60)


@each_case("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_refused_handshake_has_its_records_id(server: RunningServer, path: str) -> None:
    key = {"authorization": "Bearer hx-abcdefghij-" + 32 * "s"}
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with _socket(server, path, additional_headers=key):
            pass
    response = refused.value.response
    assert response.status_code == 403
    request_id = response.headers["x-request-id"]
    found = await recorded(server, "status, outcome", "request_id = ?", request_id)
    assert found == (403, "refused")


async def test_what_django_refuses_has_its_records_id(server: RunningServer) -> None:
    async with server.client() as client:
        for path, content, status in (
            ("/api/overview", b"", 403),
            ("/version", b"", 403),
            ("/api/keys", b"x" * 2 * MAX_BODY_BYTES, 413),
        ):
            answer = await client.request("POST" if content else "GET", path, content=content)
            request_id = answer.headers["x-request-id"]
            found = await recorded(server, "status, outcome", "request_id = ?", request_id)
            assert answer.status_code == found[0] == status and found[1] == "refused"


async def test_a_message_over_the_limit(server: RunningServer, ready: FakeNeuron) -> None:
    before = new_request_id(time.time() - 1)
    async with _socket(server) as connection:
        await connection.send(json.dumps(CREATE | {"input": "x" * 20 * MAX_BODY_BYTES}))
        with pytest.raises(websockets.ConnectionClosed):
            while True:
                expected = json.loads(await asyncio.wait_for(connection.recv(), 60))
                assert expected["code"] == "request_too_large"
    assert connection.close_code == 1009
    where = "endpoint = '/v1/responses (socket)' AND code = 'request_too_large' AND request_id > ?"
    found = await recorded(server, "status, outcome", where, before)
    assert found == (413, "refused")


async def test_a_websocket_whose_reader_stalls_is_cut_off(
    server: RunningServer, ready: FakeNeuron
) -> None:
    ready.script = flood
    await served_by(ready, server)
    async with _socket(server) as connection:
        await connection.send(json.dumps(CREATE))
        connection.transport.pause_reading()
        assert await asyncio.wait_for(ready.cancelled.get(), 60)
        connection.transport.abort()


async def test_health_and_unknown_paths(server: RunningServer, ready: FakeNeuron) -> None:
    await served_by(ready, server)
    async with server.client() as client:
        upgrade = {"connection": "Upgrade", "upgrade": "h2c"}
        for headers in ({}, upgrade):
            health = await client.get("/health", headers=headers)
            assert health.status_code == 200 and health.json()["status"] == "ok"
        assert (await client.get("/v1/nothing")).json()["error"]["code"] == "unknown_url"
        home = await client.get("/")
        assert (home.status_code, home.headers["location"]) == (302, "/login/")
