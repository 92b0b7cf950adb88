"""ASGI's lifespan, for servers that speak it (Daphne does not; ``server.py`` drains there)."""

from __future__ import annotations

from typing import Any

from inference.gateway.gateway import Gateway

DRAIN_GRACE_S = 8.0


class LifespanConsumer:
    """Starts the gateway with the server and drains it at the end."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._gateway.ensure_started()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._gateway.drain(DRAIN_GRACE_S)
                await send({"type": "lifespan.shutdown.complete"})
                return
