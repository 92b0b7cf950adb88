"""Starts tracing where a collector is named: OpenTelemetry is imported only then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference.gateway.tracing.exporter import Tracing

logger = logging.getLogger(__name__)


def started_tracing(url: str | None, *, gateway_id: str) -> Tracing | None:
    """``url`` takes OTLP's traces. ``None``: it is not named, or OpenTelemetry refuses one of its
    other variables, which the log reports."""
    if url is None:
        return None
    from inference.gateway.tracing.exporter import Tracing

    try:
        return Tracing(url, gateway_id=gateway_id)
    except ValueError as error:
        logger.error("requests are not traced: OpenTelemetry refuses its settings: %s", error)
        return None
