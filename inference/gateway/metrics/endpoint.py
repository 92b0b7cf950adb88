"""The port on which Prometheus scrapes one gateway: threads of its own, apart from the API.

Belongs to an operator, not to clients: it shows who uses how much and needs no key. So it listens
on the gateway's address unless configured otherwise, on loopback by default.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import CancelledError
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from fleet.live.snapshot import FleetSnapshot
from fleet.selectors import load_jobs_by_status
from helexa_site.instance import INSTANCE_HEADER, instance_id
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.gateway.metrics.fleet import DatabaseCounts, FleetCollector
from inference.settings.metrics_listen import MetricsListen
from inference.supervised_threads import SupervisedThread
from inference.wire.errors import ApiError
from metering.selectors import reservations_open

logger = logging.getLogger(__name__)

METRICS_PATH = "/metrics"
CLIENT_TIMEOUT_S = 10.0
MAX_SCRAPES = 8
DATABASE_TIMEOUT_S = 2.0


class MetricsEndpoint:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._database = DatabaseThreads("metrics")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: WSGIServer | None = None
        self._thread: SupervisedThread | None = None
        collector = FleetCollector(self._snapshot, self._counts)
        gateway.metrics.registry.register(collector)
        gateway.metrics.watch(
            "helexa_requests_open", "Requests that a neuron works on.", self._num_open
        )

    @property
    def port(self) -> int | None:
        return self._server.server_port if self._server is not None else None

    def start(self, listen: MetricsListen | None) -> None:
        """Call on the gateway's event loop. A port that cannot be had is a warning: the gateway
        serves without."""
        if listen is None:
            return
        self._loop = asyncio.get_running_loop()
        try:
            self._server = _Server(listen, self._application())
        except OSError as error:
            logger.warning(
                "no metrics: cannot listen on %s: %s; each gateway of a host needs a "
                "HELEXA_METRICS_LISTEN of its own, or 'off'",
                listen,
                error.strerror or error,
            )
            return
        self._thread = SupervisedThread(self._server.serve_forever, name="metrics")
        self._thread.start()
        logger.info("metrics on http://%s%s", listen, METRICS_PATH)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    def _application(self) -> Any:
        metrics = make_wsgi_app(self._gateway.metrics.registry)
        instance = instance_id(self._gateway.config.data_dir)

        def application(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"].rstrip("/") == METRICS_PATH:
                return metrics(environ, partial(_start_ours, start_response, instance))
            return _plain(start_response, "404 Not Found", f"Metrics are at {METRICS_PATH}.\n")

        return application

    def _snapshot(self) -> FleetSnapshot | None:
        return self._gateway.liveness.latest

    def _num_open(self) -> float:
        return len(self._gateway.streams)

    def _counts(self) -> DatabaseCounts | None:
        """Asked on the event loop, which has threads for it; a scrape does not wait for a database
        that is away."""
        assert self._loop is not None
        asking = asyncio.run_coroutine_threadsafe(self._database.query(_read_counts), self._loop)
        try:
            return asking.result(DATABASE_TIMEOUT_S)
        except (ApiError, TimeoutError, CancelledError):
            asking.cancel()
            return None


def _start_ours(start_response: Any, instance: str | None, status: str, headers: Any) -> Any:
    ours = [(INSTANCE_HEADER, instance)] if instance else []
    return start_response(status, [*headers, *ours])


def _read_counts() -> DatabaseCounts:
    return DatabaseCounts(load_jobs=load_jobs_by_status(), reservations=reservations_open())


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, at most ``MAX_SCRAPES``; further ones are closed unanswered."""

    daemon_threads = True

    def __init__(self, listen: MetricsListen, application: Any) -> None:
        found = socket.getaddrinfo(listen.host or None, listen.port, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        self._places = threading.BoundedSemaphore(MAX_SCRAPES)
        super().__init__((listen.host, listen.port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Binds without looking up our own name, which a resolver may take long for."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.info("a scrape broke off", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


def _plain(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]
