"""Sends spans to a collector, by OTLP over HTTP, from a thread of its own.

    RequestSpans ─▶ queue (bounded) ─▶ thread: batches ─▶ collector
                    full: dropped              └▶ does not answer: dropped, and logged

OpenTelemetry's library reads its other variables itself (headers, timeouts, sampling, sizes of
queue and batch).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from inference.gateway.tracing.spans import RequestSpans
from inference.logs.throttled import ThrottledLog
from inference.version import VERSION

logger = logging.getLogger(__name__)

SERVICE = "helexa"
LIBRARY_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)
"""Which report each failed batch and each dropped span."""


class Tracing:
    def __init__(self, url: str, *, gateway_id: str) -> None:
        resource = Resource.create({SERVICE_VERSION: VERSION, SERVICE_INSTANCE_ID: gateway_id})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("helexa", VERSION)
        self._failures = _Failures(url)
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(self._failures)

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpans:
        return RequestSpans(self._tracer, headers)

    def stop(self, timeout_s: float) -> None:
        """Sends the queued spans, for ``timeout_s`` at most. Blocks."""
        stopping = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        stopping.start()
        stopping.join(timeout_s)
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).removeFilter(self._failures)


class _Failures(logging.Filter):
    """Logs one of the library's messages a minute, in place of all of them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._log = ThrottledLog(logger, logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            why = record.getMessage()
            self._log.log("spans", f"spans are not exported to {self._url}, and are dropped: {why}")
        return False
