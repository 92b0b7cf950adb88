"""One gateway: its Redis connections, its background tasks, and the requests it has open.

Starts on the first request (or an ASGI lifespan), on that event loop. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from django.conf import settings

from helexa_site.config import Config
from inference.garbage import freeze_heap, make_full_collections_rare
from inference.gateway.background_loops import BackgroundLoops, Loop, repeat
from inference.gateway.database import DatabaseCatalogue
from inference.gateway.images import ImageParser, ImageSender, image_rules
from inference.gateway.metrics import (
    REFUSALS_INTERVAL_S,
    Metrics,
    QueueDemandReporter,
    RefusalCounts,
    client_family,
    watch_ledger,
)
from inference.gateway.redis.event_reader import EventReaders
from inference.gateway.redis.inbox import Dispatcher
from inference.gateway.redis.neurons import (
    LOOK_INTERVAL_S,
    WATCH_INTERVAL_S,
    HeldRequestsWatch,
    Liveness,
    NeuronConduct,
)
from inference.gateway.request.admission import Bounds, Limiting
from inference.gateway.request.event_stream import STANDSTILL_INTERVAL_S, RequestStreams
from inference.gateway.request.identify import Identifier, pseudonym_of
from inference.gateway.request.outcome import PROBES, Call, Outcomes, end_spans, recorded_by
from inference.gateway.request.place import Placer
from inference.gateway.request.reserve import Accounting
from inference.gateway.server.paths import api_path_of
from inference.gateway.upstreams.links import UpstreamLinks
from inference.protocol.keys import GATEWAY_ALIVE_INTERVAL_S, WAITING_INTERVAL_S, gateway_alive_key
from inference.proxies import UnsupportedProxyError
from inference.redis_link import RedisLink, redis_client
from inference.supervised_threads import SupervisedPool
from inference.wire.errors import ServiceUnavailableError
from metering.principal import Scope
from metering.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from inference.gateway.metrics_endpoint import MetricsEndpoint
    from inference.gateway.tracing import Tracing
    from metering.key_directory import KeyDirectory
    from metering.ledger.writer import LedgerWriter

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

COMMAND_TIMEOUT_S = 3.0
MAX_READ_BYTES = 16 * 1024 * 1024
"""The most bytes of events in one read: twice the entries of an honest neuron."""
READ_TIMEOUT_S = 3.0
"""Longer than the reader blocks, so that a Redis that hangs is noticed."""
FINAL_USAGE_STOP_S = 0.4
FINAL_USAGE_POLL_S = 0.02
LEDGER_FLUSH_S = 5.0
LEDGER_CLOSE_S = 2.0
SPANS_STOP_S = 2.0
FLUSH_S = 1.0
FAREWELL_S = 1.0


class Gateway:
    def __init__(
        self,
        config: Config,
        catalogue: DatabaseCatalogue,
        *,
        directory: KeyDirectory,
        make_ledger: Callable[[str], LedgerWriter],
    ) -> None:
        self.config = config
        self.catalogue = catalogue
        self.gateway_id = uuid.uuid4().hex
        self.metrics = Metrics()
        self.identifier = Identifier(config, directory)
        self.pseudonym = pseudonym_of(settings.SECRET_KEY)
        self._directory = directory
        self._ledger = make_ledger(self.gateway_id)
        watch_ledger(self.metrics, self._ledger)
        self.accounting = Accounting(
            self._ledger, self.gateway_id, max_waiting=config.max_waiting_requests
        )
        self.bounds = Bounds(
            max_open_requests=config.max_open_requests,
            max_open_body_bytes=config.max_open_body_bytes,
        )
        self.images = ImageParser(image_rules(config), config.image_hosts)
        self.refusals = RefusalCounts()
        self.outcomes = Outcomes(
            self.accounting.settle,
            self.metrics.observe,
            lambda outcome: self.limits.settle(outcome),
            recorded_by(self._ledger),
            *(() if config.traces_url is None else (end_spans,)),
            self.refusals.observe,
        )
        self._tracing: Tracing | None = None
        self.draining = False
        self._drain_ended = asyncio.Event()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._loops = BackgroundLoops()
        self._on_start: list[Callable[[], None]] = []

    def ensure_started(self) -> None:
        """Call on the event loop that will serve."""
        if self._loops.are_running or self.draining:
            return
        # ``asyncio.to_thread``: exceptions of its jobs must not end the loop.
        asyncio.get_running_loop().set_default_executor(SupervisedPool(thread_name_prefix="files"))
        freeze_heap()
        make_full_collections_rare()
        self._redis = redis_client(self.config.redis_url, COMMAND_TIMEOUT_S)
        self._frames_link = RedisLink(self.config.redis_url, timeout_s=COMMAND_TIMEOUT_S)
        self._limits_link = RedisLink(self.config.redis_url, timeout_s=COMMAND_TIMEOUT_S)
        stall_limit_s = self.config.redis_stall_s
        self.streams = RequestStreams()
        self.dispatcher = Dispatcher(self._frames_link, stall_limit_s=stall_limit_s)
        self.image_sender = ImageSender(self._redis, stall_limit_s=stall_limit_s)
        self.readers = EventReaders(
            self._redis,
            lambda: RedisLink(
                self.config.redis_url, timeout_s=READ_TIMEOUT_S, max_reply_bytes=MAX_READ_BYTES
            ),
            self.gateway_id,
            self.streams,
            stall_limit_s=stall_limit_s,
            on_fault=NeuronConduct(self._cut_off).fault,
        )
        self.liveness = Liveness(
            self._redis, self.gateway_id, self.streams, self.readers, stall_limit_s=stall_limit_s
        )
        self.held = HeldRequestsWatch(
            self._redis,
            self.gateway_id,
            self.streams,
            self.dispatcher,
            self.readers,
            self.liveness.neuron_names,
        )
        limiter = RateLimiter(self._limits_link)
        self.limits = Limiting(limiter)
        self._limiter = limiter
        self._directory.start()
        self._ledger.start()
        self.placer = Placer(
            self.catalogue,
            self.liveness.placing_snapshot,
            self.streams,
            max_waiting=self.config.max_waiting_requests,
        )
        self.upstreams = UpstreamLinks(
            settings.SECRET_KEY, max_waiting=self.config.max_waiting_requests
        )
        queue_demand = self._queue_demand = QueueDemandReporter(self._redis, self.gateway_id)
        self._tracing = _started_tracing(self.config.traces_url, self.gateway_id)
        self._loops.begin("leases", limiter.run_renewals)
        for name, work, interval_s in (
            ("standstills", self.streams.check_standstill, STANDSTILL_INTERVAL_S),
            ("alive", self.liveness.announce, GATEWAY_ALIVE_INTERVAL_S),
            ("watch", self.liveness.watch, WATCH_INTERVAL_S),
            ("held requests", self.held.look_if_due, LOOK_INTERVAL_S),
            ("waiting", lambda: queue_demand.publish(self.placer.waiting()), WAITING_INTERVAL_S),
            ("refusals", lambda: self.refusals.flush(self._redis), REFUSALS_INTERVAL_S),
        ):
            self._loops.begin(name, partial(repeat, work, interval_s))
        for begin in self._on_start:
            begin()

    def open_call(
        self,
        *,
        request_id: str,
        endpoint: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Call:
        user_agent = dict(headers).get(b"user-agent", b"").decode("latin-1")
        tracing = None if endpoint in PROBES else self._tracing
        return Call(
            request_id=request_id,
            endpoint=endpoint,
            client=client_family(user_agent),
            record=self.outcomes.record,
            spans=None if tracing is None else tracing.begin(headers),
        )

    async def is_gateway_alive(self, gateway_id: str) -> bool:
        """``True`` also where Redis does not answer: that is no proof of a death."""
        if gateway_id == self.gateway_id:
            return True
        try:
            return bool(gateway_id and await self._redis.exists(gateway_alive_key(gateway_id)))
        except (redis.RedisError, OSError):
            return True

    async def check_headers(self, path: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Checks only API paths: the admin identifies its users itself. Raises ``ApiError``."""
        if api_path_of(path) is not None:
            self.ensure_started()
            await self.identifier.identify(headers, scope=Scope.INFERENCE)

    def when_started(self, begin: Callable[[], None]) -> None:
        self._on_start.append(begin)

    def run_beside(self, name: str, work: Loop) -> asyncio.Task[None]:
        return self._loops.begin(name, work)

    def spawn(self, handler: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """``drain`` waits for it."""
        task = asyncio.create_task(handler)
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        return task

    def _cut_off(self, neuron: str, reason: str) -> None:
        self._loops.begin(
            f"cut off {neuron}", lambda: self.catalogue.cut_off_neuron(neuron, reason)
        )

    async def drain(self, grace_s: float) -> None:
        """Kept connections are answered with refusals until ``close``."""
        self.draining = True
        if self._handlers:
            logger.info("draining: %d requests are open", len(self._handlers))
            await self._wait_for_handlers(grace_s)
        if left := list(self._handlers):
            logger.warning("draining: cutting %d requests short", len(left))
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=FAREWELL_S)
        await self._stop()

    def close(self) -> None:
        """Call it after ``drain``, when no client is connected any more. Blocks."""
        self._ledger.close(LEDGER_CLOSE_S)

    def end_drain(self) -> None:
        self._drain_ended.set()

    async def _wait_for_handlers(self, grace_s: float) -> None:
        finished = asyncio.ensure_future(asyncio.wait(set(self._handlers)))
        ended = asyncio.ensure_future(self._drain_ended.wait())
        await asyncio.wait({finished, ended}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        ended.cancel()

    async def _stop(self) -> None:
        if not self._loops.are_running:
            return
        await self.dispatcher.close(FLUSH_S)
        await self._await_final_usage()
        self.upstreams.close()
        await self._loops.stop()
        await self.readers.close()
        await self._limiter.flush()
        await self._directory.stop()
        await self._ledger.flush(LEDGER_FLUSH_S)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.stop, SPANS_STOP_S)
        await self.refusals.flush(self._redis)
        with suppress(ServiceUnavailableError):
            await self._queue_demand.publish({})
        await self.liveness.withdraw()
        await self._redis.aclose()
        await self._frames_link.aclose()
        await self._limits_link.aclose()

    async def _await_final_usage(self) -> None:
        deadline_s = time.monotonic() + FINAL_USAGE_STOP_S
        while len(self.streams) and time.monotonic() < deadline_s:
            await asyncio.sleep(FINAL_USAGE_POLL_S)
        for stream in self.streams:
            stream.usage_counter.settle_as_counted()


METRICS_HOST = "127.0.0.1"


class LifespanConsumer:
    """ASGI's lifespan calls it, or Daphne's ``run``, which does not speak that."""

    def __init__(self, gateway: Gateway, metrics: MetricsEndpoint | None = None) -> None:
        self._gateway = gateway
        self._metrics = metrics

    def start(self, host: str = METRICS_HOST) -> None:
        self._gateway.ensure_started()
        if self._metrics is not None:
            self._metrics.start(self._gateway.config.metrics.at(host))

    async def drain(self) -> None:
        await self._gateway.drain(self._gateway.config.drain_s)
        if self._metrics is not None:
            await self._metrics.stop()

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.drain()
                await asyncio.to_thread(self._gateway.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


def _started_tracing(url: str | None, gateway_id: str) -> Tracing | None:
    if url is None:
        return None
    from inference.gateway.tracing import Tracing

    try:
        return Tracing(url, gateway_id=gateway_id)
    except (ValueError, UnsupportedProxyError) as error:
        logger.error("requests are not traced: OpenTelemetry refuses its settings: %s", error)
        return None
