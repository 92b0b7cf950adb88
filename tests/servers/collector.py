"""An OpenTelemetry collector: takes OTLP's traces over HTTP and keeps their spans.

with Collector() as collector:
    …, traces_url=collector.url
    spans = await collector.of_trace(trace_id, 6)
"""

from __future__ import annotations

import asyncio
import http.server
import threading
import time
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PATH = "/v1/traces"
PATIENCE_S = 60.0
WAIT_S = 0.01


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


class Collector:
    """``status`` answers every export; while ``answers`` is not set, none is answered."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Received] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        self.was_asked = threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector._take(self.path, dict(self.headers), body)
                self.send_response(collector.status)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.base_url = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.base_url}{PATH}"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    async def of_trace(self, trace_id: str, num_spans: int) -> list[Received]:
        """Returns a trace's spans by their beginnings, once so many have come: of two that began
        at once, the longer one first."""
        return await asyncio.to_thread(self.wait_for, trace_id, num_spans)

    def wait_for(self, trace_id: str, num_spans: int) -> list[Received]:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            found = [span for span in list(self.spans) if span.trace_id == trace_id]
            if len(found) >= num_spans:
                return sorted(found, key=lambda span: (span.start_ns, -span.end_ns))
            time.sleep(WAIT_S)
        names = [span.name for span in self.spans]
        raise AssertionError(f"no {num_spans} spans of trace {trace_id} came, but {names}")

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == PATH, path
        self.was_asked.set()
        assert self.answers.wait(PATIENCE_S)
        if self.status != 200:
            return
        self.bodies.append(body)
        self.headers.append(headers)
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [_received(span, resource) for span in scope_spans.spans]


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
