"""The metrics port of a running gateway."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from helexa_site.instance import instance_id
from inference.gateway.gateway import Gateway
from inference.gateway.metrics import endpoint as metrics_endpoint
from inference.gateway.metrics.endpoint import DatabaseCounts, MetricsEndpoint
from inference.settings.gateway import MetricsListen
from inference.wire.errors import ServiceUnavailableError
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.metrics.ended import ended

HOST = "127.0.0.1"


@pytest.fixture
def load_jobs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The database's counts; it does not answer while this is empty."""
    counted: dict[str, int] = {"pending": 1, "running": 2}

    async def query(_threads: object, _query: object) -> DatabaseCounts:
        if not counted:
            raise ServiceUnavailableError("database_unavailable", "away")
        return DatabaseCounts(load_jobs=counted, reservations=4)

    monkeypatch.setattr(metrics_endpoint.DatabaseThreads, "query", query)
    return counted


@pytest_asyncio.fixture
async def endpoint(
    gateway: Gateway, neuron: FakeNeuron, load_jobs: dict[str, int]
) -> AsyncIterator[MetricsEndpoint]:
    assert neuron.name
    gateway.ensure_started()
    made = MetricsEndpoint(gateway)
    made.start(MetricsListen(HOST, 0))
    await gateway.liveness.snapshot()
    yield made
    await made.stop()


async def scrape(endpoint: MetricsEndpoint, path: str = "/metrics") -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.get(f"http://{HOST}:{endpoint.port}{path}")


async def test_a_scrape_names_the_instance(gateway: Gateway, endpoint: MetricsEndpoint) -> None:
    sent = (await scrape(endpoint)).headers["x-helexa-instance"]
    assert sent == instance_id(gateway.config.data_dir)


async def test_a_scrape_shows_requests_fleet_and_load_jobs(
    gateway: Gateway, endpoint: MetricsEndpoint
) -> None:
    gateway.metrics.observe(ended(prompt_tokens=7, completion_tokens=5))
    response = await scrape(endpoint)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "access-control-allow-origin" not in response.headers
    lines = response.text.splitlines()
    for line in (
        'cortex_requests_total{model="tiny",node="beast"} 1.0',
        'cortex_spend_tokens_total{account="team",key="hx_abc"} 12.0',
        'cortex_model_in_flight{model="tiny",node="beast"} 1.0',
        'cortex_device_vram_free_mb{device="cpu",node="beast"} 4096.0',
        'helexa_load_jobs{state="running"} 2.0',
        "helexa_requests_open 0.0",
        "helexa_reservations_open 4.0",
        "helexa_ledger_queue_operations 3.0",
        "helexa_ledger_queue_age_seconds 0.5",
        "helexa_ledger_spooled_bills 2.0",
    ):
        assert line in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


async def test_a_database_that_is_away_hides_only_its_own(
    endpoint: MetricsEndpoint, load_jobs: dict[str, int]
) -> None:
    load_jobs.clear()
    text = (await scrape(endpoint)).text
    assert "helexa_load_jobs{" not in text
    assert "cortex_model_in_flight{" in text


async def test_there_is_nothing_else_on_the_port(endpoint: MetricsEndpoint) -> None:
    assert (await scrape(endpoint, "/v1/models")).status_code == 404
    async with httpx.AsyncClient(timeout=30) as client:
        posted = await client.post(f"http://{HOST}:{endpoint.port}/metrics", content=b"x")
    assert posted.status_code == 405


async def test_a_port_in_use_is_a_warning(
    gateway: Gateway,
    endpoint: MetricsEndpoint,
    directory: FakeDirectory,
    ledger: FakeLedger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert endpoint.port is not None
    another = Gateway(
        gateway.config, gateway.catalogue, directory=directory, make_ledger=lambda _id: ledger
    )
    second = MetricsEndpoint(another)
    with caplog.at_level(logging.WARNING):
        second.start(MetricsListen(HOST, endpoint.port))
    assert second.port is None
    (record,) = caplog.records
    assert f"{HOST}:{endpoint.port}" in record.message and "HELEXA_METRICS_LISTEN" in record.message
    await second.stop()
    assert (await scrape(endpoint)).status_code == 200


async def test_off_is_off(gateway: Gateway) -> None:
    gateway.ensure_started()
    endpoint = MetricsEndpoint(gateway)
    endpoint.start(gateway.config.metrics.at(HOST))
    assert endpoint.port is None
    await endpoint.stop()


async def test_the_port_is_free_after_a_stop(gateway: Gateway) -> None:
    gateway.ensure_started()
    endpoint = MetricsEndpoint(gateway)
    endpoint.start(MetricsListen(HOST, 0))
    port = endpoint.port
    assert port is not None
    await endpoint.stop()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
