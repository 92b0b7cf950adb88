"""Hostile input over standard input: the agent lives, and answers the messages meant for it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from helexa_acp.transports import LineTransport
from tests.acp.bridge import agent_here, endpoint_table
from tests.acp.fake_endpoint import FakeEndpoint, Reply
from tests.cases import each_case


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, message: Any) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.writer.write(line + b"\n")

    async def answer_to(self, request_id: Any) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                message: dict[str, Any] = json.loads(await self.reader.readline())
                if "method" not in message and message["id"] == request_id:
                    return message

    async def call(self, method: Any, params: Any) -> dict[str, Any]:
        self.send({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        return await self.answer_to(7)

    async def is_alive(self) -> bool:
        self.send({"jsonrpc": "2.0", "id": "alive?", "method": "session/list", "params": {}})
        return "result" in await self.answer_to("alive?")


@pytest.fixture
async def wire(tmp_path: Path, endpoint: FakeEndpoint) -> AsyncIterator[Wire]:
    endpoint.will(Reply("Hello."))
    async with agent_here(tmp_path, endpoint_table(endpoint.url), 100_000) as ours:
        made = Wire(*await asyncio.open_connection(sock=ours, limit=2**24))
        yield made
        made.writer.close()


PROMPT: dict[str, Any] = {"sessionId": "hxa-x", "prompt": [{"type": "text", "text": "x"}]}
LOAD = {"cwd": "/", "mcpServers": []}


@each_case(
    ("line", "code"),
    [
        *((one, -32700) for one in (b"not json", b"\xff\xfe\x00", b"[" * 50_000, b"x" * 500_000)),
        *((one, -32600) for one in (b"[]", b'"hello"', b'{"id": {}, "method": "initialize"}')),
    ],
)
async def test_lines_that_are_no_message(wire: Wire, line: bytes, code: int) -> None:
    wire.send(line)
    assert (await wire.answer_to(None))["error"]["code"] == code
    assert await wire.is_alive()


async def test_answers_and_notifications_that_cannot_be(wire: Wire) -> None:
    """Some of these end the SDK's own loop; of others it makes the best."""
    odd = {"mcpServers": [{"name": "x"}, 5], "_meta": {"cwd": "x"}}
    for method, params in (
        ("initialize", {"protocolVersion": "x", "clientCapabilities": 5, "clientInfo": []}),
        ("initialize", {"protocolVersion": 999, "clientCapabilities": {"fs": {"readTextFile": 7}}}),
        ("session/new", {"cwd": "/", **odd}),
    ):
        assert "result" in await wire.call(method, params)
    for answer in (
        *({"id": one, "result": 1} for one in ({}, [1], True, 0)),
        {"id": 0, "error": "a string"},
        {"id": 10**30, "error": {"code": "x", "message": []}},
        *({"id": None}, {}, {"jsonrpc": "1.0"}),
    ):
        wire.send(answer)
    for method in ("session/cancel", "no/such", "_x", "session/prompt", "$/cancel_request"):
        for params in ({}, {"sessionId": "x"}, {"sessionId": []}, None):
            wire.send({"jsonrpc": "2.0", "method": method, "params": params})
    assert await wire.is_alive()


@each_case(
    ("method", "params"),
    [
        (5, {}),
        ("initialize", []),
        ("initialize", {}),
        ("no/such", {}),
        ("_no/such", {}),
        ("session/set_model", {"sessionId": 1}),
        ("session/new", {"cwd": 5, "mcpServers": []}),
        ("session/new", {"cwd": "a\0b", "mcpServers": []}),
        ("session/new", {"cwd": "/a\0b", "mcpServers": []}),
        ("session/new", {"cwd": "/", "mcpServers": "x"}),
        ("session/load", LOAD | {"sessionId": "../../etc/passwd"}),
        ("session/load", LOAD | {"sessionId": "hxa-" + "x" * 10_000}),
        ("session/prompt", PROMPT),
        ("session/prompt", PROMPT | {"prompt": [{"type": "spell"}]}),
        ("session/prompt", PROMPT | {"_meta": {"session_id": 1, "self": 2}}),
        ("session/set_mode", {"sessionId": "\ud800", "modeId": "plan"}),
        ("session/set_config_option", {"sessionId": "x", "configId": "model", "value": []}),
        ("session/list", {"cursor": "-1"}),
        ("session/close", {"sessionId": "x"}),
        ("session/fork", LOAD | {"sessionId": "x"}),
    ],
)
async def test_requests_that_cannot_be(wire: Wire, method: Any, params: Any) -> None:
    assert "error" in await wire.call(method, params)
    assert await wire.is_alive()


async def test_contents_of_a_prompt_that_cannot_be(wire: Wire, endpoint: FakeEndpoint) -> None:
    session_id = (await wire.call("session/new", LOAD))["result"]["sessionId"]

    async def prompt(**block: str) -> dict[str, Any]:
        return await wire.call("session/prompt", {"sessionId": session_id, "prompt": [block]})

    assert "result" in await prompt(type="text", text="a\ud800b")
    assert endpoint.prompts[0]["messages"][1]["content"] == "a?b"
    for mime_type, data in (("text/html", "AAAA"), ("image/png", "<>"), ("image/png", "")):
        refusal = await prompt(type="image", mimeType=mime_type, data=data)
        assert refusal["error"]["code"] == -32602
    refusal = await prompt(type="audio", mimeType="audio/wav", data="AAAA")
    assert "audio is not taken" in refusal["error"]["message"]


async def test_how_the_input_ends() -> None:
    """The last line needs no end. Of an editor that goes with answers unread the kernel reports a
    reset; had it read all answers, it would report end of file."""
    reader = asyncio.StreamReader()
    reader.feed_data(b'\n{"id": 5, "result": {}}')
    reader.feed_eof()
    transport = LineTransport(reader, Mock())
    assert await transport.receive() == {"id": 5, "result": {}}
    assert await transport.receive() is None
    theirs, ours = socket.socketpair()
    transport = LineTransport(*await asyncio.open_connection(sock=theirs))
    await transport.send({"jsonrpc": "2.0", "method": "session/update", "params": {}})
    ours.close()
    assert await transport.receive() is None
    await transport.close()
