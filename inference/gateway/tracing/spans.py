"""The spans of one request, from its first header to its settled end. Belongs to one event loop.

    RequestSpans ─┬▶ placed             a span, once the place is known
                  ├▶ begin_neuron, begin_upstream   an attempt, one open at a time; its counter
                  │                                 settles it, or leave_attempt ends it
                  └▶ end                the last attempt with its stages, then the request's own

Times are ``time.monotonic``'s. They become unix times by one reading of both clocks at the
request's beginning, so that a clock that is set meanwhile does not bend a trace.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleet.upstreams.entry import UpstreamEntry
from inference.gateway.request.settle import RequestOutcome, UsageCounter
from inference.gateway.tracing.attributes import (
    OPERATION_OF,
    Attributes,
    error_type,
    request_attributes,
    span_name,
    upstream_attributes,
)
from inference.gateway.tracing.stages import Stage, reported_stages, timed_stages
from inference.wire.errors import ApiError
from metering.ledger.entries import CANCELLED

if TYPE_CHECKING:
    from inference.gateway.request.place import Place

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
propagator = TraceContextTextMapPropagator()


class RequestSpans:
    __slots__ = (
        "_attempt",
        "_context",
        "_num_attempts",
        "_root",
        "_tracer",
        "_unix_ns",
    )

    def __init__(self, tracer: Tracer, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """``headers``, with names in lower case, may have the client's trace."""
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
        """Awaits that, and keeps how long it took and what came of it."""
        since_s = time.monotonic()
        try:
            place = await finding
        except BaseException as error:
            code = error.code if isinstance(error, ApiError) else CANCELLED
            self._span("placement", since_s, time.monotonic(), {}, error=code)
            raise
        self.placed(since_s, place.neuron, was_cold=place.was_cold)
        return place

    def placed(self, since_s: float, target: str, *, was_cold: bool = False) -> None:
        """It has looked for a place since then, and found one."""
        attributes: Attributes = {"helexa.target": target, "helexa.was_cold": was_cold}
        self._span("placement", since_s, time.monotonic(), attributes)

    def begin_neuron(self, neuron: str, counter: UsageCounter) -> str:
        """The next attempt, at a neuron; ``counter`` gets its stages. Returns its ``traceparent``;
        empty: nothing of it is kept, and the neuron need not report times."""
        attributes: Attributes = {"helexa.target": neuron}
        span = self._begin_attempt(f"neuron {neuron}", counter, attributes, has_stages=True)
        return traceparent_of(span) if span.is_recording() else ""

    def begin_upstream(
        self, entry: UpstreamEntry, model: str, target: str, counter: UsageCounter, *, endpoint: str
    ) -> str:
        """The next attempt, at an upstream that calls the model so. Returns its
        ``traceparent``."""
        operation = OPERATION_OF.get(endpoint, endpoint)
        attributes = upstream_attributes(entry, model, target, operation)
        name = f"{operation} {model}"
        return traceparent_of(self._begin_attempt(name, counter, attributes, has_stages=False))

    def leave_attempt(self, code: str) -> None:
        """Ends the open attempt, which failed with ``code``, before another one. Ignored where none
        is open."""
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
        self._attempt = _Attempt(span, counter, sent_s, has_stages=has_stages)
        counter.when_settled(self._attempt.settle)
        return span

    def _end_attempt(self, attempt: _Attempt, error: str) -> None:
        span = attempt.span
        if not span.is_recording():
            return
        ended_s = attempt.ended_s or time.monotonic()
        context = trace.set_span_in_context(span, Context())
        if attempt.has_stages:
            for stage in attempt.stages(ended_s):
                self._span(stage.name, stage.start_s, stage.end_s, {}, context=context)
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


class _Attempt:
    """One attempt at a neuron or upstream, until it is left or the request ends."""

    __slots__ = ("_counter", "_sent_s", "ended_s", "has_stages", "span")

    def __init__(
        self, span: Span, counter: UsageCounter, sent_s: float, *, has_stages: bool
    ) -> None:
        self.span = span
        self.has_stages = has_stages
        self.ended_s: float | None = None
        """``None``: more of it may come."""
        self._counter = counter
        self._sent_s = sent_s

    def settle(self) -> None:
        self.ended_s = time.monotonic()

    def stages(self, ended_s: float) -> list[Stage]:
        counter = self._counter
        if (times := counter.stage_times) is not None:
            return reported_stages(times, sent_s=self._sent_s, ended_s=ended_s)
        return timed_stages(
            counter.timing, sent_s=self._sent_s, accepted_s=counter.accepted_s, ended_s=ended_s
        )


def traceparent_of(span: Span) -> str:
    """Returns the span's ``traceparent`` as W3C Trace Context writes it; empty where there is no
    trace."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


def _context_of(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """Empty where the client sends no trace, or none that can be read."""
    wanted = (TRACEPARENT.encode(), TRACESTATE.encode())
    carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in wanted}
    return propagator.extract(carrier, context=Context()) if carrier else Context()


def _fail(span: Span, error: str) -> None:
    """``error``: a code; empty: it did not fail."""
    if error:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR, error))
