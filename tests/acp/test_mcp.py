"""Servers that the editor hands over: their tools in a session, and what they may do wrong."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from acp.schema import EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio

from helexa_acp.errors import McpError
from helexa_acp.history import Text
from helexa_acp.mcp import HttpTransport, parts_of, reply_to, tool_name, tools_of
from tests.acp.bridge import Bridge, until
from tests.acp.fake_endpoint import FakeEndpoint, Reply, read_request, write
from tests.acp.mcp_server import answer

TRANSPORT: Any = None
ADD = ("mcp__sums__add", {"a": 2, "b": 3})
PROGRAM = str(Path(__file__).parent / "mcp_server.py")


def stdio(name: str = "sums", *faults: str) -> McpServerStdio:
    env = [EnvVariable(name="FOR_TESTS", value="1")]
    return McpServerStdio(name=name, command=sys.executable, args=[PROGRAM, *faults], env=env)


class HttpServer:
    def __init__(self) -> None:
        self.streams = False
        self.wrong: tuple[int, str] | None = None
        self.methods: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await read_request(reader)
        message = received.body or {"method": received.method}
        self.headers.append(received.headers)
        self.methods.append(message["method"])
        status, kind, body = 202, "text/plain", ""
        if "id" in message:
            result = answer(message["method"], message["params"])
            status, kind = 200, "application/json"
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            if self.streams:
                sent_text = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress"})
                kind, body = "text/event-stream", f": hi\ndata: {sent_text}\n\ndata: {body}\n\n"
        if self.wrong is not None:
            kind, (status, body) = "application/json", self.wrong
        head = f"Content-Type: {kind}\r\nMcp-Session-Id: s1\r\nConnection: close"
        write(writer, status, body.encode(), head)
        await writer.drain()
        writer.close()


@pytest.fixture
async def http_server() -> AsyncIterator[HttpServer]:
    made = HttpServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    yield made
    server.close()


def names(body: dict[str, Any]) -> list[str]:
    found = [tool["function"]["name"] for tool in body["tools"]]
    return [name for name in found if name.startswith("mcp__")]


async def test_a_server_over_stdio(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(
        Reply(calls=(ADD, ("mcp__sums__draw", {}))),
        Reply(calls=(("mcp__sums__fail", {}),), call_id="last"),
        Reply("Five."),
    )
    bridge.editor.permissions.extend(["allow_once"] * 3)
    await bridge.open(mcp_servers=[stdio()])
    await bridge.ask("Add 2 and 3.")
    assert names(endpoint.prompts[0]) == [
        f"mcp__sums__{name}" for name in ("add", "draw", "fail", "wait")
    ]
    assert len(bridge.editor.asked) == 3, "servers' tools are asked for"
    statuses = bridge.editor.statuses()
    assert statuses == {"call_0": "completed", "call_1": "completed", "last_0": "failed"}
    results = [one for one in endpoint.prompts[-1]["messages"] if one["role"] == "tool"]
    assert [one["content"] for one in results] == ["5", "[content of type audio]", "it broke"]
    assert "AAAA" in json.dumps(endpoint.prompts[-1])
    # Plan mode asks for tools that only read, and refuses others.
    bridge.editor.permissions.append("allow_once")
    await bridge.set_mode("plan")
    endpoint.will(Reply(calls=(ADD, ("mcp__sums__draw", {})), call_id="plan"), Reply("Five."))
    await bridge.ask("Add 2 and 3.")
    statuses = bridge.editor.statuses()
    assert (statuses["plan_0"], statuses["plan_1"]) == ("completed", "failed")
    # A call that is cancelled leaves the server running.
    endpoint.will(Reply(calls=(("mcp__sums__wait", {}),), call_id="long"), Reply("Done."))
    await bridge.set_mode("bypassPermissions")
    asking = asyncio.create_task(bridge.ask("Wait."))
    await until(lambda: bridge.editor.statuses().get("long_0") == "in_progress")
    await bridge.cancel()
    assert (await asking).stop_reason == "cancelled"
    endpoint.will(Reply(calls=(ADD,), call_id="after"), Reply("Five."))
    await bridge.ask("Add.")
    assert bridge.editor.statuses()["after_0"] == "completed"


async def test_servers_that_fail_take_nothing_along(bridge: Bridge, endpoint: FakeEndpoint) -> None:
    endpoint.will(Reply("Hello."))
    none = McpServerStdio(name="none", command="/not/there", args=[], env=[])
    closed = HttpMcpServer(type="http", name="closed", url="http://127.0.0.1:9/", headers=[])
    servers = [none, stdio("dead", "dies"), stdio("no", "refuses"), closed, stdio("loud", "noise")]
    await bridge.open(mcp_servers=servers)
    assert (await bridge.ask("Hello!")).stop_reason == "end_turn"
    sent_text = bridge.editor.texts()
    for name, why in {
        "none": "did not start",
        "dead": "has ended",
        "no": "not today",
        "closed": "cannot be reached",
    }.items():
        assert f"MCP server {name} cannot be used: " in sent_text
        assert why in sent_text
    assert "loud" not in sent_text
    assert "mcp__loud__add" in names(endpoint.prompts[0])
    bridge.editor.updates.clear()
    await bridge.ask("Hello again!")
    assert bridge.editor.texts() == "Hello.", "the problems are reported once"


@pytest.mark.parametrize("streams", [False, True], ids=["json", "events"])
async def test_a_server_over_http(
    bridge: Bridge, endpoint: FakeEndpoint, http_server: HttpServer, streams: bool
) -> None:
    http_server.streams = streams
    endpoint.will(Reply(calls=(("mcp__web__add", {"a": 2, "b": 3}),)), Reply("Five."))
    headers = [HttpHeader(name="Authorization", value="Bearer t")]
    web = HttpMcpServer(type="http", name="web", url=http_server.url, headers=headers)
    await bridge.open(mcp_servers=[web])
    await bridge.set_mode("bypassPermissions")
    await bridge.ask("Add 2 and 3.")
    assert bridge.editor.statuses() == {"call_0": "completed"}
    assert http_server.methods == [
        *("initialize", "notifications/initialized", "tools/list", "tools/list", "tools/call"),
    ]
    assert all(one["authorization"] == "Bearer t" for one in http_server.headers)
    assert all(one["mcp-session-id"] == "s1" for one in http_server.headers[1:])
    await bridge.connection.close_session(session_id=bridge.session_id)
    assert http_server.methods[-1] == "DELETE"


async def test_http_answers_that_are_none(http_server: HttpServer) -> None:
    transport = HttpTransport(http_server.url, {})
    for status, body, why in (
        *((200, "<html>", "no JSON"), (200, "[]", "no JSON"), (200, "", "without a result")),
        (500, "", "HTTP status 500"),
    ):
        http_server.wrong = status, body
        with pytest.raises(McpError, match=why):
            await transport.request("initialize", {"protocolVersion": "1"})
    await transport.close()


def test_names_that_apis_take_and_requests_of_servers() -> None:
    assert tool_name("my server", "do.it") == "mcp__my_server__do_it"
    long = tool_name("s" * 50, "t" * 50)
    assert len(long) == 64
    assert long != tool_name("s" * 50, "t" * 51)
    assert reply_to({"method": "notifications/progress"}) is None
    assert reply_to({"id": 1, "method": "ping"}) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert "error" in (reply_to({"id": 1, "method": "roots/list"}) or {})


def test_what_servers_may_answer() -> None:
    for odd in ({}, {"tools": 1}, {"tools": [1, {}, {"name": None}]}):
        assert tools_of("s", TRANSPORT, odd) == []
    (tool,) = tools_of("s", TRANSPORT, {"tools": [{"name": "x", "inputSchema": {"properties": 3}}]})
    assert tool.spec.parameters == {"properties": {}, "type": "object"}
    assert tool.spec.description == "s: x"
    for odd in ({}, {"content": 1}, {"content": [1, None, {"type": "text", "text": 1}]}):
        assert parts_of(odd)
    links = [
        {"type": "resource", "resource": {"text": "whole"}},
        {"type": "resource_link", "uri": "file:///a"},
    ]
    assert parts_of({"content": links}) == (Text("whole"), Text("[resource: file:///a]"))
    assert parts_of({"structuredContent": {"a": 1}}) == (Text("{'a': 1}"),)
