"""Spans of requests, sent to an OpenTelemetry collector where ``OTEL_EXPORTER_OTLP_ENDPOINT`` names
one. Only then is this module imported, and OpenTelemetry with it.

    chat tiny                      the request, in the trace of its client's ``traceparent``
    ├─ placement                   until a replica or an upstream has a place for it
    ├─ neuron beast                an attempt, from its ``Submit`` to its last event
    │  ├─ neuron prepare
    │  ├─ engine queue
    │  ├─ engine prefill
    │  └─ engine decode
    └─ chat gpt-5                  an attempt at an upstream, which is sent its ``traceparent``

The gateway makes all of them. Neurons report durations and no times, so their clocks may differ.
Spans are dropped while the queue is full or the collector does not answer.

OpenTelemetry's library reads its other variables itself (headers, timeouts, sampling, sizes of
queue and batch). ``RequestSpans`` belongs to one event loop; it has one attempt open at a time.

Times are ``time.monotonic``'s. They become unix times by one reading of both clocks at the
request's beginning, so that a clock set meanwhile does not bend a trace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleet.upstreams import UpstreamEntry
from inference.gateway.request.outcome import NO_MODEL, RequestOutcome
from inference.gateway.request.tokens import UsageCounter
from inference.logs import ThrottledLog
from inference.protocol.events import StageTimes
from inference.proxies import proxy_for
from inference.redaction import Redactor
from inference.version import VERSION
from inference.wire.errors import ApiError
from metering.ledger.entries import CANCELLED, Outcome

if TYPE_CHECKING:
    from inference.gateway.request.place import Place

logger = logging.getLogger(__name__)

SERVICE = "helexa"
LIBRARY_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)


class Tracing:
    def __init__(self, url: str, *, gateway_id: str) -> None:
        """Raises ``ValueError``, ``UnsupportedProxyError``."""
        resource = Resource.create({SERVICE_VERSION: VERSION, SERVICE_INSTANCE_ID: gateway_id})
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=url, session=_Session(proxy_for(url)))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("helexa", VERSION)
        self._failures = _Failures(url)
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(self._failures)

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpans:
        return RequestSpans(self._tracer, headers)

    def stop(self, timeout_s: float) -> None:
        """Blocks for ``timeout_s`` at most."""
        stopping = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        stopping.start()
        stopping.join(timeout_s)
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).removeFilter(self._failures)


class _Session(requests.Session):
    """Its own rule for the environment's proxies differs from ``inference.proxies``."""

    def __init__(self, proxy: str | None) -> None:
        super().__init__()
        self._proxy = proxy

    def merge_environment_settings(self, *given: Any) -> Any:
        settings = super().merge_environment_settings(*given)
        return {**settings, "proxies": {"all": self._proxy} if self._proxy else {}}


class _Failures(logging.Filter):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._log = ThrottledLog(logger, logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            why = record.getMessage()
            self._log.log("spans", f"spans are not exported to {self._url}, and are dropped: {why}")
        return False


TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
propagator = TraceContextTextMapPropagator()


class RequestSpans:
    def __init__(self, tracer: Tracer, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._tracer = tracer
        began_s = time.monotonic()
        self._unix_ns = time.time_ns() - round(began_s * 1e9)
        self._root = tracer.start_span(
            "request",
            context=_context_of(headers),
            kind=SpanKind.SERVER,
            start_time=self._ns(began_s),
        )
        self._context = trace.set_span_in_context(self._root, Context())
        self._attempt: _Attempt | None = None
        self._num_attempts = 0

    @property
    def trace_id(self) -> str:
        return f"{self._root.get_span_context().trace_id:032x}"

    async def placing(self, finding: Awaitable[Place]) -> Place:
        since_s = time.monotonic()
        try:
            place = await finding
        except BaseException as error:
            code = error.code if isinstance(error, ApiError) else CANCELLED
            self._span("placement", since_s, time.monotonic(), {}, error=code)
            raise
        self.placed(since_s, place.replica.neuron, was_cold=place.was_cold)
        return place

    def placed(self, since_s: float, target: str, *, was_cold: bool = False) -> None:
        attributes: Attributes = {"helexa.target": target, "helexa.was_cold": was_cold}
        self._span("placement", since_s, time.monotonic(), attributes)

    def begin_neuron(self, neuron: str, counter: UsageCounter) -> str:
        """Returns the ``traceparent``; empty: not sampled, and the neuron reports no times."""
        attributes: Attributes = {"helexa.target": neuron}
        span = self._begin_attempt(f"neuron {neuron}", counter, attributes, has_stages=True)
        return traceparent_of(span) if span.is_recording() else ""

    def begin_upstream(
        self, entry: UpstreamEntry, model: str, target: str, counter: UsageCounter, *, endpoint: str
    ) -> str:
        operation = OPERATION_OF.get(endpoint, endpoint)
        attributes = upstream_attributes(entry, model, target, operation)
        name = f"{operation} {model}"
        return traceparent_of(self._begin_attempt(name, counter, attributes, has_stages=False))

    def leave_attempt(self, code: str) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._end_attempt(attempt, code)

    def end(self, outcome: RequestOutcome) -> None:
        error = error_type(outcome)
        self.leave_attempt(error)
        if not self._root.is_recording():
            return
        self._root.update_name(span_name(outcome))
        self._root.set_attributes(request_attributes(outcome))
        _fail(self._root, error)
        self._root.end(self._ns(time.monotonic()))

    def _begin_attempt(
        self, name: str, counter: UsageCounter, attributes: Attributes, *, has_stages: bool
    ) -> Span:
        self._num_attempts += 1
        sent_s = time.monotonic()
        attributes = {**attributes, "helexa.attempt": self._num_attempts}
        span = self._tracer.start_span(
            name,
            context=self._context,
            kind=SpanKind.CLIENT,
            start_time=self._ns(sent_s),
            attributes=attributes,
        )
        self._attempt = _Attempt(span, counter, sent_s, has_stages)
        return span

    def _end_attempt(self, attempt: _Attempt, error: str) -> None:
        span = attempt.span
        if not span.is_recording():
            return
        ended_s = attempt.counter.settled_s or time.monotonic()
        context = trace.set_span_in_context(span, Context())
        times = attempt.counter.stage_times
        if attempt.has_stages and times is not None:
            for stage in reported_stages(times, sent_s=attempt.sent_s, ended_s=ended_s):
                self._span(*stage, {}, context=context)
        _fail(span, error)
        span.end(self._ns(ended_s))

    def _span(
        self,
        name: str,
        start_s: float,
        end_s: float,
        attributes: Attributes,
        *,
        error: str = "",
        context: Context | None = None,
    ) -> None:
        span = self._tracer.start_span(
            name,
            context=context or self._context,
            start_time=self._ns(start_s),
            attributes=attributes,
        )
        _fail(span, error)
        span.end(self._ns(end_s))

    def _ns(self, moment_s: float) -> int:
        return self._unix_ns + round(moment_s * 1e9)


class _Attempt(NamedTuple):
    span: Span
    counter: UsageCounter
    sent_s: float
    has_stages: bool


def traceparent_of(span: Span) -> str:
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _context_of(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    wanted = (TRACEPARENT.encode(), TRACESTATE.encode())
    carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in wanted}
    return propagator.extract(carrier, context=Context()) if carrier else Context()


def _fail(span: Span, error: str) -> None:
    if error:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR, error))


PREPARE, QUEUE, PREFILL, DECODE = (
    "neuron prepare",
    "engine queue",
    "engine prefill",
    "engine decode",
)
ENGINE = "engine"


def reported_stages(
    times: StageTimes, *, sent_s: float, ended_s: float
) -> Iterator[tuple[str, float, float]]:
    """Each stage's name, start and end."""
    way_s = max(0.0, ended_s - sent_s - times.total_ms / 1000) / 2
    by_name = {
        PREPARE: times.prepare_ms,
        QUEUE: times.queue_ms,
        PREFILL: times.prefill_ms,
        DECODE: times.decode_ms,
    }
    rest_ms = times.total_ms - times.prepare_ms
    if times.queue_ms is None and rest_ms > 0:
        by_name[ENGINE] = rest_ms
    at_s = min(sent_s + way_s, ended_s)
    for name, duration_ms in by_name.items():
        if duration_ms is not None:
            end_s = min(at_s + duration_ms / 1000, ended_s)
            yield name, at_s, end_s
            at_s = end_s


OPERATION_OF = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/responses/compact": "chat",
    "/v1/messages": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/v1/score": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/audio/speech": "speech",
    "/v1/images/generations": "image_generation",
    "/v1/images/edits": "image_edit",
    "/v1/images/variations": "image_variation",
    "/v1/moderations": "moderation",
}
"""The conventions have no name for those from ``rerank`` on. Others operate no model."""
PROVIDER = "helexa"
MAX_MODEL_CHARACTERS = 128
masked = Redactor()

Attributes = dict[str, str | int | bool]


def span_name(outcome: RequestOutcome) -> str:
    endpoint, model = outcome.settle.endpoint, outcome.settle.model
    operation = OPERATION_OF.get(endpoint)
    if operation is None:
        return endpoint
    return operation if model == NO_MODEL else f"{operation} {model}"


def error_type(outcome: RequestOutcome) -> str:
    return "" if outcome.kind is Outcome.ANSWERED else outcome.settle.outcome


def request_attributes(outcome: RequestOutcome) -> Attributes:
    settle = outcome.settle
    found: Attributes = {
        "helexa.request_id": settle.request_id,
        "helexa.outcome": outcome.kind.value,
        "helexa.account": settle.account,
        "helexa.key": settle.key,
        "helexa.client": settle.client,
        "helexa.target": settle.neuron,
        "http.route": settle.endpoint,
        "error.type": error_type(outcome),
    }
    found = {name: value for name, value in found.items() if value}
    if outcome.status:
        found["http.response.status_code"] = outcome.status
    if outcome.was_cold:
        found["helexa.was_cold"] = True
    if (operation := OPERATION_OF.get(settle.endpoint)) is not None:
        found |= _of_model(outcome, operation)
    return found


def upstream_attributes(
    entry: UpstreamEntry, model: str, target: str, operation: str
) -> Attributes:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": entry.dialect,
        "gen_ai.request.model": model,
        "server.address": urlsplit(entry.url).hostname or "",
        "helexa.target": target,
    }


def _of_model(outcome: RequestOutcome, operation: str) -> Attributes:
    settle = outcome.settle
    found: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
    }
    if outcome.model_asked:
        found["gen_ai.request.model"] = masked(outcome.model_asked)[:MAX_MODEL_CHARACTERS]
    if settle.model != NO_MODEL:
        found["gen_ai.response.model"] = settle.model
    if settle.prompt_tokens or settle.completion_tokens:
        found |= {
            "gen_ai.usage.input_tokens": settle.prompt_tokens,
            "gen_ai.usage.output_tokens": settle.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": settle.cached_tokens,
        }
    if settle.time_to_first_token_ms is not None:
        found["helexa.time_to_first_token_ms"] = settle.time_to_first_token_ms
    return found
