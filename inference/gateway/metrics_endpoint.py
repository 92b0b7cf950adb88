"""The port on which Prometheus scrapes one gateway: threads of its own, apart from the API.

It shows who uses how much and needs no key. It listens on the gateway's address unless configured
otherwise, on loopback by default. Each gateway reports the same of the fleet; sum over gateways
only what counts requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.selectors import load_jobs_by_status
from helexa_site.data_directory import INSTANCE_HEADER, instance_id
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.heartbeat import DeviceInfo
from inference.settings.gateway import MetricsListen
from inference.supervised_threads import SupervisedThread
from inference.wire.errors import ApiError
from metering.selectors import reservations_open

logger = logging.getLogger(__name__)

METRICS_PATH = "/metrics"
CLIENT_TIMEOUT_S = 10.0
DATABASE_TIMEOUT_S = 2.0


class MetricsEndpoint(Collector):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._database = DatabaseThreads("metrics")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _Server | None = None
        self._thread: SupervisedThread | None = None
        gateway.metrics.registry.register(self)
        gateway.metrics.watch(
            "helexa_requests_open",
            "Requests that a neuron works on.",
            lambda: len(gateway.streams),
        )

    @property
    def port(self) -> int | None:
        return self._server.server_port if self._server is not None else None

    def start(self, listen: MetricsListen | None) -> None:
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
        ours = [(INSTANCE_HEADER, instance)] if instance else []

        def application(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"].rstrip("/") == METRICS_PATH:
                return metrics(environ, lambda status, head: start_response(status, head + ours))
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"Metrics are at {METRICS_PATH}.\n".encode()]

        return application

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if (counts := self._counts()) is not None:
            yield from database_metrics(*counts)
        if (snapshot := self._gateway.liveness.latest) is not None:
            yield from fleet_metrics(snapshot)

    def _counts(self) -> tuple[Mapping[str, int], int] | None:
        """Runs on the event loop, which has threads for it: a scrape does not wait for a database
        that is offline."""
        assert self._loop is not None
        asking = asyncio.run_coroutine_threadsafe(self._database.query(_read_counts), self._loop)
        try:
            return asking.result(DATABASE_TIMEOUT_S)
        except (ApiError, TimeoutError, CancelledError):
            asking.cancel()
            return None


def _read_counts() -> tuple[Mapping[str, int], int]:
    return load_jobs_by_status(), reservations_open()


class _Server(ThreadingWSGIServer):
    def __init__(self, listen: MetricsListen, application: Any) -> None:
        found = socket.getaddrinfo(listen.host or None, listen.port, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        super().__init__((listen.host, listen.port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Binds without resolving our own name, which may take long."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.info("a scrape broke off", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        pass


MIB = 1 << 20
REPLICA_GAUGES = {
    "cortex_model_in_flight": ("in_flight", "Sequences that are being computed."),
    "cortex_model_queue_depth": ("queue_depth", "Sequences that wait for the engine."),
    "cortex_model_max_in_flight": ("max_in_flight", "Sequences that may be computed at once."),
    "cortex_model_max_queue_depth": ("max_queue_depth", "Sequences that may wait."),
    "cortex_model_tok_s_prefill": ("prefill_tokens_per_s", "Prompt tokens a second, as measured."),
    "cortex_model_tok_s_decode": ("decode_tokens_per_s", "Answer tokens a second, as measured."),
    "helexa_kv_blocks_used": ("kv_blocks_used", "KV blocks that running sequences hold."),
    "helexa_kv_blocks": ("kv_blocks_total", "KV blocks that there are."),
    "helexa_engine_last_forward_age_seconds": (
        "last_forward_age_s",
        "Since the last forward pass.",
    ),
    "helexa_replica_host_memory_bytes": ("host_memory_bytes", "Host memory of a sleeping model."),
}
REPLICA_COUNTERS = {
    "helexa_engine_restarts": ("num_restarts", "Engines that ended and were started again."),
    "helexa_engine_preemptions": ("num_preemptions", "Sequences that lost their blocks to others."),
    "helexa_engine_prefix_hit_tokens": ("prefix_hit_tokens", "Prompt tokens of the prefix cache."),
    "helexa_engine_drafted_tokens": ("num_drafted_tokens", "Tokens that were drafted."),
    "helexa_engine_accepted_draft_tokens": ("num_accepted_drafts", "Drafts that were accepted."),
}
DEVICE_GAUGES: dict[str, tuple[Callable[[DeviceInfo], float | None], str]] = {
    "cortex_device_vram_used_mb": (
        lambda device: (device.total_memory_bytes - device.free_memory_bytes) / MIB,
        "Memory in use; a CPU's is its host's.",
    ),
    "cortex_device_vram_free_mb": (
        lambda device: device.free_memory_bytes / MIB,
        "Memory that is free.",
    ),
    "cortex_device_utilization_pct": (
        lambda device: device.utilization_percent,
        "Of the last moments, in how many the device computed.",
    ),
    "cortex_device_temp_c": (lambda device: device.temperature_c, "Degrees Celsius."),
}


def database_metrics(load_jobs: Mapping[str, int], reservations: int) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("helexa_load_jobs", "Load jobs by their state.", labels=("state",))
    for state, num_jobs in sorted(load_jobs.items()):
        jobs.add_metric((state,), num_jobs)
    yield jobs
    yield GaugeMetricFamily(
        "helexa_reservations_open",
        "Reservations that stand, one for each cap of an open request.",
        reservations,
    )


def fleet_metrics(snapshot: FleetSnapshot) -> Iterator[Metric]:
    here = GaugeMetricFamily(
        "helexa_neuron_info", "Neurons that are here: always 1.", labels=("node", "version")
    )
    for neuron in snapshot.neurons:
        here.add_metric((neuron.name, neuron.version), 1)
    yield here
    replicas = tuple(snapshot.replicas())
    statuses = GaugeMetricFamily(
        "helexa_replica_status",
        "The status that each replica has: always 1.",
        labels=("model", "node", "status"),
    )
    for replica in replicas:
        statuses.add_metric((replica.model, replica.neuron, replica.status.value), 1)
    yield statuses
    yield from _of_replicas(GaugeMetricFamily, REPLICA_GAUGES, replicas)
    yield from _of_replicas(CounterMetricFamily, REPLICA_COUNTERS, replicas)
    for name, (read, words) in DEVICE_GAUGES.items():
        gauge = GaugeMetricFamily(name, words, labels=("node", "device"))
        for neuron in snapshot.neurons:
            for device in neuron.devices:
                if (value := read(device)) is not None:
                    named = str(device.index) if device.kind == "cuda" else "cpu"
                    gauge.add_metric((neuron.name, named), value)
        yield gauge


def _of_replicas(
    make: type[GaugeMetricFamily | CounterMetricFamily],
    families: Mapping[str, tuple[str, str]],
    replicas: Iterable[ReplicaView],
) -> Iterator[Metric]:
    for name, (field, words) in families.items():
        family = make(name, words, labels=("model", "node"))
        for replica in replicas:
            if (value := getattr(replica, field)) is not None:
                family.add_metric((replica.model, replica.neuron), value)
        yield family
