"""Spans of requests, sent to an OpenTelemetry collector where ``OTEL_EXPORTER_OTLP_ENDPOINT`` names
one. Without it OpenTelemetry is not imported, and no request has spans.

    chat tiny                      the request, in the trace of its client's ``traceparent``
    ├─ placement                   until a replica or an upstream has a place for it
    ├─ neuron beast                an attempt, from its ``Submit`` to its last event
    │  ├─ neuron prepare
    │  ├─ engine queue
    │  ├─ engine prefill
    │  └─ engine decode
    └─ chat gpt-5                  an attempt at an upstream, which is sent its ``traceparent``

The gateway makes all of them. Neurons report durations and no times, so their clocks may differ.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.gateway.tracing.spans import Tracing

logger = logging.getLogger(__name__)


def started_tracing(url: str | None, *, gateway_id: str) -> Tracing | None:
    if url is None:
        return None
    from inference.gateway.tracing.spans import Tracing

    try:
        return Tracing(url, gateway_id=gateway_id)
    except ValueError as error:
        logger.error("requests are not traced: OpenTelemetry refuses its settings: %s", error)
        return None
