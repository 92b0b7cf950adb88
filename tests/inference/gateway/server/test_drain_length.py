"""A gateway waits for its open requests as long as ``HELEXA_DRAIN_SECONDS`` allows, whatever serves
it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from inference.gateway.gateway import LifespanConsumer
from inference.gateway.server.run import _Stopper
from tests.cases import each_case

DRAIN_S = 517.0


class DrainedGateway:
    """Notes how long it may wait for open requests."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(drain_s=DRAIN_S)
        self.graces_s: list[float] = []

    async def drain(self, grace_s: float) -> None:
        self.graces_s.append(grace_s)

    def close(self) -> None: ...


async def under_daphne(gateway: Any) -> None:
    closed = asyncio.Event()
    server: Any = SimpleNamespace(stop_listening=lambda: None, close=closed.set)

    async def stop_metrics() -> None: ...

    metrics: Any = SimpleNamespace(stop=stop_metrics)
    _Stopper(server, gateway, metrics).stop()
    await closed.wait()


async def under_uvicorn(gateway: Any) -> None:
    async def receive() -> dict[str, str]:
        return {"type": "lifespan.shutdown"}

    async def send(_message: dict[str, str]) -> None: ...

    await LifespanConsumer(gateway)({}, receive, send)


@each_case("stop", [under_daphne, under_uvicorn])
async def test_the_setting_is_how_long_it_waits(stop: Any) -> None:
    gateway = DrainedGateway()
    await stop(gateway)
    assert gateway.graces_s == [DRAIN_S]
