"""Sends spans to a collector, by OTLP over HTTP, from a thread of its own.

    RequestSpans ─▶ queue (bounded) ─▶ thread: batches ─▶ collector
                    full: dropped              └▶ does not answer: dropped, and logged once

What else is set by variables of OpenTelemetry's (headers, timeouts, sampling, sizes of queue and
batch) its library reads itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from inference.gateway.tracing.spans import RequestSpans
from inference.version import VERSION

logger = logging.getLogger(__name__)

SERVICE = "helexa"
LIBRARY_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)


class Tracing:
    def __init__(self, url: str, *, gateway_id: str) -> None:
        resource = Resource.create({SERVICE_VERSION: VERSION, SERVICE_INSTANCE_ID: gateway_id})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        self._exporter = ReportedExporter(OTLPSpanExporter(endpoint=url), url)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("helexa", VERSION)

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpans:
        return RequestSpans(self._tracer, headers)

    def stop(self, timeout_s: float) -> None:
        stopping = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        stopping.start()
        stopping.join(timeout_s)
        self._exporter.shutdown()


class ReportedExporter(SpanExporter):
    """Exports by ``exporter``, and logs once that it fails, with the reason, and once that it works
    again."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._is_shut_down = False
        self._failures = _Failures(url)
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(self._failures)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._failures.end()
        return result

    def shutdown(self) -> None:
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).removeFilter(self._failures)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _Failures(logging.Filter):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._are_reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and not self._are_reported:
            self._are_reported = True
            logger.warning(
                "spans are not exported to %s, and are dropped until they are: %s",
                self._url,
                record.getMessage(),
            )
        return False

    def end(self) -> None:
        if self._are_reported:
            self._are_reported = False
            logger.info("spans are exported to %s again", self._url)
