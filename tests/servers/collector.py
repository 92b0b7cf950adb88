"""An OpenTelemetry collector: takes OTLP's traces over HTTP and keeps their spans.

with Collector() as collector:
    …, traces_url=collector.url
    spans = await collector.of_trace(trace_id, 6)
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.servers.fake_upstream import Asked, FakeUpstream, Wire

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Received:
    """``parent_id`` is empty where it has none."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    error: str
    """The message of its status; empty: it has none."""
    resource: dict[str, Any]

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


class Collector(FakeUpstream):
    """``status`` answers every export; while ``answers`` is not set, none is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = self._take
        self.spans: list[Received] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        self.url = f"{self.origin}/v1/traces"

    def __exit__(self, *ended: object) -> None:
        self.answers.set()
        super().__exit__(*ended)

    async def of_trace(self, trace_id: str, num_spans: int) -> list[Received]:
        """Returns a trace's spans by their beginnings, once so many have come: of two that began
        at once, the longer one first."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [span for span in list(self.spans) if span.trace_id == trace_id]
                if len(found) >= num_spans:
                    return sorted(found, key=lambda span: (span.start_ns, -span.end_ns))
                await asyncio.sleep(0.01)

    def _take(self, asked: Asked, wire: Wire) -> None:
        assert self.answers.wait(PATIENCE_S)
        found = ExportTraceServiceRequest.FromString(asked.body) if self.status == 200 else None
        for resource_spans in found.resource_spans if found else []:
            resource = _values(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [_received(span, resource) for span in scope_spans.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        wire.whole(self.status, answer, "application/x-protobuf")


def _received(span: Span, resource: dict[str, Any]) -> Received:
    is_error = span.status.code == Status.STATUS_CODE_ERROR
    return Received(
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        error=span.status.message if is_error else "",
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }
