"""A gateway whose requests are traced, and the collector that receives their spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import MakeClient
from tests.servers.collector import Collector


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with Collector() as started:
        yield started


@pytest.fixture
def traced(make_client: MakeClient, collector: Collector) -> AsgiClient:
    return make_client(traces_url=collector.url, allow_anonymous=False)
