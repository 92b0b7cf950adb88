"""ASGI's lifespan, for servers that speak it (Daphne does not; ``run.py`` drains there)."""

from __future__ import annotations

import asyncio
from typing import Any

from inference.gateway.gateway import Gateway
from inference.gateway.metrics.endpoint import MetricsEndpoint

METRICS_HOST = "127.0.0.1"


class LifespanConsumer:
    def __init__(self, gateway: Gateway, metrics: MetricsEndpoint | None = None) -> None:
        self._gateway = gateway
        self._metrics = metrics

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._gateway.ensure_started()
                if self._metrics is not None:
                    self._metrics.start(self._gateway.config.metrics.at(METRICS_HOST))
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._gateway.drain(self._gateway.config.drain_s)
                if self._metrics is not None:
                    await self._metrics.stop()
                await asyncio.to_thread(self._gateway.close)
                await send({"type": "lifespan.shutdown.complete"})
                return
