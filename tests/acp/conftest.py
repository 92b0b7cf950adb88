"""One fake endpoint for each test, and agents that talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helexa_acp import agent
from helexa_acp.wire import endpoints
from tests.acp.bridge import Bridge, bridge_here, endpoint_table
from tests.acp.fake_endpoint import FakeEndpoint

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the agent wait longer: without a list of models it would continue, on a busy machine."""
    monkeypatch.setattr(agent, "LIST_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(endpoints, "LIST_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    async with FakeEndpoint().running() as fake:
        yield fake


@pytest.fixture
async def bridge(tmp_path: Path, endpoint: FakeEndpoint) -> AsyncIterator[Bridge]:
    async with bridge_here(tmp_path, endpoint_table(endpoint.url)) as made:
        yield made


@pytest.fixture(params=["openai-chat", "openai-responses", "anthropic-messages"])
async def each_bridge(
    tmp_path: Path, endpoint: FakeEndpoint, request: pytest.FixtureRequest
) -> AsyncIterator[Bridge]:
    async with bridge_here(tmp_path, endpoint_table(endpoint.url, request.param)) as made:
        yield made
