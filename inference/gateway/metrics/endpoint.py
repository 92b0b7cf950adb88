"""The port on which Prometheus scrapes one gateway: threads of its own, apart from the API.

Belongs to an operator, not to clients: it shows who uses how much and needs no key. So it listens
on the gateway's address unless configured otherwise, on loopback by default.

Beside the requests' metrics it shows the fleet as it is at a scrape, of which nothing is kept: an
offline neuron has no gauges. Each gateway reports the same of the fleet; sum over gateways only
what counts requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from fleet.selectors import load_jobs_by_status
from helexa_site.instance import INSTANCE_HEADER, instance_id
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.protocol.heartbeat import DeviceInfo
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


MIB = 1 << 20
Read = Callable[[ReplicaView], float | None]
ReadDevice = Callable[[DeviceInfo], float | None]

REPLICA_GAUGES: tuple[tuple[str, str, Read], ...] = (
    (
        "cortex_model_in_flight",
        "Sequences that are being computed.",
        lambda replica: replica.in_flight,
    ),
    (
        "cortex_model_queue_depth",
        "Sequences that wait for the engine.",
        lambda replica: replica.queue_depth,
    ),
    (
        "cortex_model_max_in_flight",
        "Sequences that may be computed at once.",
        lambda replica: replica.max_in_flight,
    ),
    (
        "cortex_model_max_queue_depth",
        "Sequences that may wait.",
        lambda replica: replica.max_queue_depth,
    ),
    (
        "cortex_model_tok_s_prefill",
        "Tokens of prompts a second, as the engine last measured.",
        lambda replica: replica.prefill_tokens_per_s,
    ),
    (
        "cortex_model_tok_s_decode",
        "Tokens of answers a second, as the engine last measured.",
        lambda replica: replica.decode_tokens_per_s,
    ),
    (
        "helexa_kv_blocks_used",
        "Blocks of keys and values that a running sequence holds.",
        lambda replica: replica.kv_blocks_used,
    ),
    (
        "helexa_kv_blocks",
        "Blocks of keys and values that there are.",
        lambda replica: replica.kv_blocks_total,
    ),
    (
        "helexa_engine_last_forward_age_seconds",
        "Since the model last computed something.",
        lambda replica: replica.last_forward_age_s,
    ),
    (
        "helexa_replica_host_memory_bytes",
        "Of the host's memory, what the weights of a model that sleeps take.",
        lambda replica: replica.host_memory_bytes,
    ),
)
REPLICA_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    (
        "helexa_engine_restarts",
        "Engines that ended by themselves and were started again.",
        lambda replica: replica.num_restarts,
    ),
    (
        "helexa_engine_preemptions",
        "Sequences that lost their blocks to others and were computed again.",
        lambda replica: replica.num_preemptions,
    ),
    (
        "helexa_engine_prefix_hit_tokens",
        "Tokens of prompts that were served from the prefix cache.",
        lambda replica: replica.prefix_hit_tokens,
    ),
    (
        "helexa_engine_drafted_tokens",
        "Tokens that were guessed and verified.",
        lambda replica: replica.num_drafted_tokens,
    ),
    (
        "helexa_engine_accepted_draft_tokens",
        "Guessed tokens that were right and are in an answer.",
        lambda replica: replica.num_accepted_drafts,
    ),
)
DEVICE_GAUGES: tuple[tuple[str, str, ReadDevice], ...] = (
    (
        "cortex_device_vram_used_mb",
        "Memory in use; a CPU's is its host's.",
        lambda device: (device.total_memory_bytes - device.free_memory_bytes) / MIB,
    ),
    (
        "cortex_device_vram_free_mb",
        "Memory that is free.",
        lambda device: device.free_memory_bytes / MIB,
    ),
    (
        "cortex_device_utilization_pct",
        "Of the last moments, in how many the device computed.",
        lambda device: device.utilization_percent,
    ),
    ("cortex_device_temp_c", "Degrees Celsius.", lambda device: device.temperature_c),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCounts:
    load_jobs: Mapping[str, int]
    reservations: int


class FleetCollector(Collector):
    def __init__(
        self,
        read_snapshot: Callable[[], FleetSnapshot | None],
        read_counts: Callable[[], DatabaseCounts | None],
    ) -> None:
        self._read_snapshot = read_snapshot
        self._read_counts = read_counts

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are checked by being collected."""
        return ()

    def collect(self) -> Iterator[Metric]:
        if (counts := self._read_counts()) is not None:
            yield _load_jobs(counts.load_jobs)
            yield GaugeMetricFamily(
                "helexa_reservations_open",
                "Reservations that stand, one for each cap of an open request.",
                counts.reservations,
            )
        snapshot = self._read_snapshot()
        if snapshot is not None:
            yield from fleet_metrics(snapshot)


def fleet_metrics(snapshot: FleetSnapshot) -> Iterator[Metric]:
    yield _neurons(snapshot.neurons)
    replicas = tuple(snapshot.replicas())
    yield _statuses(replicas)
    for name, documentation, read in REPLICA_GAUGES:
        gauge = GaugeMetricFamily(name, documentation, labels=("model", "node"))
        _add_all(gauge, replicas, read)
        yield gauge
    for name, documentation, read in REPLICA_COUNTERS:
        counter = CounterMetricFamily(name, documentation, labels=("model", "node"))
        _add_all(counter, replicas, read)
        yield counter
    for name, documentation, read_device in DEVICE_GAUGES:
        gauge = GaugeMetricFamily(name, documentation, labels=("node", "device"))
        for neuron in snapshot.neurons:
            for device in neuron.devices:
                if (value := read_device(device)) is not None:
                    name = str(device.index) if device.kind == "cuda" else "cpu"
                    gauge.add_metric((neuron.name, name), value)
        yield gauge


def _add_all(
    family: GaugeMetricFamily | CounterMetricFamily, replicas: Iterable[ReplicaView], read: Read
) -> None:
    for replica in replicas:
        if (value := read(replica)) is not None:
            family.add_metric((replica.model, replica.neuron), value)


def _neurons(neurons: Iterable[NeuronView]) -> Metric:
    family = GaugeMetricFamily(
        "helexa_neuron_info", "Neurons that are here: always 1.", labels=("node", "version")
    )
    for neuron in neurons:
        family.add_metric((neuron.name, neuron.version), 1)
    return family


def _statuses(replicas: Iterable[ReplicaView]) -> Metric:
    family = GaugeMetricFamily(
        "helexa_replica_status",
        "The status that each replica has: always 1.",
        labels=("model", "node", "status"),
    )
    for replica in replicas:
        family.add_metric((replica.model, replica.neuron, replica.status.value), 1)
    return family


def _load_jobs(by_state: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily("helexa_load_jobs", "Load jobs by their state.", labels=("state",))
    for state, num_jobs in sorted(by_state.items()):
        family.add_metric((state,), num_jobs)
    return family
