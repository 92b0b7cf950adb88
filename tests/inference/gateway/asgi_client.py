"""Driving an ASGI application by hand, by HTTP and by WebSocket: what clients hide (streams,
leaving) is the point."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from asgiref.testing import ApplicationCommunicator

TIMEOUT_S = 60.0
LAST = ("response.completed", "response.incomplete", "response.failed", "error")


class Exchange:
    """One request to the application, running until it is left or the application returns."""

    def __init__(self, application: Any, scope: dict[str, Any], body_parts: list[bytes]) -> None:
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for index, part in enumerate(body_parts):
            more = index < len(body_parts) - 1
            self._messages.put_nowait({"type": "http.request", "body": part, "more_body": more})
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.piece_sizes: list[int] = []
        """The sizes of the body's pieces, as they were sent."""
        self.reads = asyncio.Event()
        """The client reads while this is set."""
        self.reads.set()
        self.ended = asyncio.Event()
        self._grew = asyncio.Event()
        self.running = asyncio.create_task(application(scope, self._messages.get, self._take))

    async def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not self.status, "the response was started twice"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert self.status, "a body came before its response"
        assert not self.ended.is_set(), "a body came after the end"
        await self.reads.wait()
        self.body += message["body"]
        self.piece_sizes.append(len(message["body"]))
        if not message.get("more_body", False):
            self.ended.set()
            self._messages.put_nowait({"type": "http.disconnect"})
        self._grew.set()

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    async def until(self, fragment: bytes) -> None:
        async with asyncio.timeout(60):
            while fragment not in self.body:
                self._grew.clear()
                await self._grew.wait()

    async def finish(self) -> Exchange:
        async with asyncio.timeout(60):
            await self.running
        return self

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def chunks(self) -> list[Any]:
        """The data of each event; ``[DONE]`` as that string."""
        frames = self.body.decode().split("\n\n")
        assert frames[-1] == ""
        data = [frame.partition("data: ")[2] for frame in frames[:-1] if frame[0] != ":"]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


class AsgiClient:
    def __init__(self, application: Any) -> None:
        self.application = application

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        parts: list[bytes] | None = None,
        headers: dict[str, str] | None = None,
        peer: str = "127.0.0.1",
        query: str = "",
        extras: dict[str, Any] | None = None,
    ) -> Exchange:
        """``extras``: what the server adds to the scope."""
        if parts is None:
            parts = [b"" if body is None else json.dumps(body).encode()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in (headers or {}).items()
            ],
            "client": (peer, 40000),
            "server": ("127.0.0.1", 31313),
            **(extras or {}),
        }
        return Exchange(self.application, scope, parts)

    async def get(self, path: str, **options: Any) -> Exchange:
        return await self.open("GET", path, **options).finish()

    async def post(self, path: str, body: Any = None, **options: Any) -> Exchange:
        return await self.open("POST", path, body, **options).finish()


class AsgiSocket(ApplicationCommunicator):
    """A connection, from its handshake on; ``with`` it the client leaves at the end."""

    def __init__(self, application: Any, path: str, **scope: Any) -> None:
        whole = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "path": path,
            "headers": [],
            "client": ("127.0.0.1", 40000),
            "server": ("127.0.0.1", 31313),
            **scope,
        }
        super().__init__(application, whole)
        self.input_queue.put_nowait({"type": "websocket.connect"})

    async def __aenter__(self) -> Self:
        assert await self.message() == {"type": "websocket.accept"}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        self.input_queue.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await self.wait(TIMEOUT_S)

    def send_json(self, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.input_queue.put_nowait({"type": "websocket.receive", "text": text})

    async def message(self) -> dict[str, Any]:
        message: dict[str, Any] = await self.receive_output(TIMEOUT_S)
        return message

    async def event(self) -> dict[str, Any]:
        message = await self.message()
        assert message["type"] == "websocket.send", message
        event: dict[str, Any] = json.loads(message["text"])
        return event

    async def turn(self, body: Any) -> list[dict[str, Any]]:
        """Its events, up to the one that ends it."""
        self.send_json(body)
        return await self.rest()

    async def rest(self) -> list[dict[str, Any]]:
        events = [await self.event()]
        while events[-1]["type"] not in LAST:
            events.append(await self.event())
        return events
