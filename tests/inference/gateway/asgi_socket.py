"""Driving an ASGI application's WebSocket by hand, message by message."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

TIMEOUT_S = 60.0
LAST = ("response.completed", "response.incomplete", "response.failed", "error")


class AsgiSocket:
    """A connection, from its handshake on; ``with`` it the client leaves at the end."""

    def __init__(self, application: Any, path: str, **scope: Any) -> None:
        self._to_application: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_application: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        whole = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "path": path,
            "headers": [],
            "client": ("127.0.0.1", 40000),
            "server": ("127.0.0.1", 31313),
            **scope,
        }
        self._to_application.put_nowait({"type": "websocket.connect"})
        self.running = asyncio.create_task(
            application(whole, self._to_application.get, self._from_application.put)
        )

    async def __aenter__(self) -> Self:
        assert await self.message() == {"type": "websocket.accept"}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        self._to_application.put_nowait({"type": "websocket.disconnect", "code": 1001})
        async with asyncio.timeout(TIMEOUT_S):
            await self.running

    def send_json(self, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self._to_application.put_nowait({"type": "websocket.receive", "text": text})

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._from_application.get()

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
