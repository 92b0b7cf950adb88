"""Runs the gateway under Daphne in this process, and stops it without breaking answers.

SIGTERM, SIGINT ─▶ stop listening ─▶ drain ≤ HELEXA_DRAIN_SECONDS ─▶ cut the rest short ─▶ stop
                                     a second signal ─────────────▶
"""

from __future__ import annotations

import asyncio
import signal

from inference.descriptors import DescriptorMarks, raise_descriptor_limit
from inference.garbage import uncollected
from inference.gateway.gateway import Gateway, LifespanConsumer
from inference.gateway.server.clients import OpenClients, Reading
from inference.gateway.server.daphne_server import DaphneServer
from inference.gateway.server.unhandled import UnhandledRequests
from inference.logs import configure_logging


def run(host: str, port: int) -> None:
    """Raises ``SystemExit`` when it cannot listen. Call in the main thread."""
    configure_logging("gateway")
    with uncollected():
        from helexa_site.asgi import application, gateway, metrics_endpoint
        from helexa_site.routing import errors_of

    config, unhandled = gateway.config, UnhandledRequests(gateway)
    server = DaphneServer(
        application,
        host=host,
        port=port,
        max_body_bytes=config.max_body_bytes,
        errors_of=errors_of,
        check_headers=gateway.check_headers,
        on_refused=unhandled.refused,
        clients=OpenClients(
            timeouts={
                Reading.HEAD: config.head_timeout_s,
                Reading.BODY: config.body_timeout_s,
                Reading.WAITING: config.idle_timeout_s,
            },
            max_per_address=config.max_connections_per_address,
            trusted_proxies=config.trusted_proxies,
            marks=DescriptorMarks.of_limit(raise_descriptor_limit()),
            on_refused=gateway.refusals.observe_connection,
        ),
    )
    lifespan = LifespanConsumer(gateway, metrics_endpoint)
    server.event_loop.call_soon(_begin, server, gateway, lifespan, host)
    if failure := server.serve():
        raise SystemExit(f"gateway: cannot listen on {host}:{port}: {failure}")
    gateway.close()


def _begin(server: DaphneServer, gateway: Gateway, lifespan: LifespanConsumer, host: str) -> None:
    lifespan.start(host)
    stopping: asyncio.Task[None] | None = None

    def stop() -> None:
        nonlocal stopping
        if stopping is None:
            stopping = asyncio.ensure_future(drain(server, lifespan))
        else:
            gateway.end_drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        server.event_loop.add_signal_handler(number, stop)


async def drain(server: DaphneServer, lifespan: LifespanConsumer) -> None:
    server.clients.stop_listening()
    try:
        await lifespan.drain()
    finally:
        server.close()
