"""The metrics port of a running gateway."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from helexa_site.instance import instance_id
from inference.gateway.gateway import Gateway
from inference.gateway.metrics import endpoint as metrics_endpoint
from inference.gateway.metrics.endpoint import (
    DatabaseCounts,
    MetricsEndpoint,
    database_metrics,
    fleet_metrics,
)
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus
from inference.settings.gateway import MetricsListen
from inference.wire.errors import ServiceUnavailableError
from tests.inference.gateway.conftest import MakeGateway
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


async def test_a_scrape_shows_requests_fleet_and_load_jobs(
    gateway: Gateway, endpoint: MetricsEndpoint, load_jobs: dict[str, int]
) -> None:
    """A database that is away hides only its own. There is nothing else on the port."""
    gateway.metrics.observe(ended(prompt_tokens=7, completion_tokens=5))
    response = await scrape(endpoint)
    assert response.status_code == 200
    assert response.headers["x-helexa-instance"] == instance_id(gateway.config.data_dir)
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
    load_jobs.clear()
    text = (await scrape(endpoint)).text
    assert "helexa_load_jobs{" not in text
    assert "cortex_model_in_flight{" in text
    assert (await scrape(endpoint, "/v1/models")).status_code == 404
    async with httpx.AsyncClient(timeout=30) as client:
        posted = await client.post(f"http://{HOST}:{endpoint.port}/metrics", content=b"x")
    assert posted.status_code == 405


async def test_a_port_in_use_is_a_warning(
    make_gateway: MakeGateway, endpoint: MetricsEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert endpoint.port is not None
    second = MetricsEndpoint(make_gateway())
    with caplog.at_level(logging.WARNING):
        second.start(MetricsListen(HOST, endpoint.port))
    assert second.port is None
    (record,) = caplog.records
    assert f"{HOST}:{endpoint.port}" in record.message and "HELEXA_METRICS_LISTEN" in record.message
    await second.stop()
    assert (await scrape(endpoint)).status_code == 200


async def test_off_is_off_and_the_port_is_free_after_a_stop(gateway: Gateway) -> None:
    gateway.ensure_started()
    endpoint = MetricsEndpoint(gateway)
    endpoint.start(gateway.config.metrics.at(HOST))
    assert endpoint.port is None
    await endpoint.stop()
    endpoint.start(MetricsListen(HOST, 0))
    port = endpoint.port
    assert port is not None
    await endpoint.stop()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


GIB = 1 << 30
Found = dict[tuple[str, tuple[str, ...]], float]

REPLICA = ReplicaView(
    neuron="beast",
    model="tiny",
    job_id="1",
    status=ReplicaStatus.READY,
    status_age_s=5.0,
    num_restarts=2,
    in_flight=3,
    queue_depth=4,
    max_in_flight=256,
    max_queue_depth=512,
    kv_blocks_used=5,
    kv_blocks_total=400,
    num_preemptions=6,
    prefix_hit_tokens=700,
    num_drafted_tokens=90,
    num_accepted_drafts=60,
    decode_tokens_per_s=50.0,
    prefill_tokens_per_s=500.0,
    last_forward_age_s=0.5,
    host_memory_bytes=7,
)
CARD = DeviceInfo(
    index=1,
    kind="cuda",
    name="Card",
    total_memory_bytes=24 * GIB,
    free_memory_bytes=4 * GIB,
    utilization_percent=80,
    temperature_c=61,
)


def snapshot(replica: ReplicaView, device: DeviceInfo) -> FleetSnapshot:
    neuron = NeuronView(
        name="beast", epoch="e", version="1.2", devices=(device,), replicas=(replica,)
    )
    return FleetSnapshot(neurons=(neuron,))


def found(of: FleetSnapshot) -> Found:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in fleet_metrics(of)
        for sample in family.samples
    }


def test_every_number_of_a_replica_and_a_device_has_its_gauge() -> None:
    assert found(snapshot(REPLICA, CARD)) == {
        ("helexa_neuron_info", ("beast", "1.2")): 1,
        ("helexa_replica_status", ("tiny", "beast", "ready")): 1,
        ("cortex_model_in_flight", ("tiny", "beast")): 3,
        ("cortex_model_queue_depth", ("tiny", "beast")): 4,
        ("cortex_model_max_in_flight", ("tiny", "beast")): 256,
        ("cortex_model_max_queue_depth", ("tiny", "beast")): 512,
        ("cortex_model_tok_s_prefill", ("tiny", "beast")): 500,
        ("cortex_model_tok_s_decode", ("tiny", "beast")): 50,
        ("helexa_kv_blocks_used", ("tiny", "beast")): 5,
        ("helexa_kv_blocks", ("tiny", "beast")): 400,
        ("helexa_engine_last_forward_age_seconds", ("tiny", "beast")): 0.5,
        ("helexa_replica_host_memory_bytes", ("tiny", "beast")): 7,
        ("helexa_engine_restarts_total", ("tiny", "beast")): 2,
        ("helexa_engine_preemptions_total", ("tiny", "beast")): 6,
        ("helexa_engine_prefix_hit_tokens_total", ("tiny", "beast")): 700,
        ("helexa_engine_drafted_tokens_total", ("tiny", "beast")): 90,
        ("helexa_engine_accepted_draft_tokens_total", ("tiny", "beast")): 60,
        ("cortex_device_vram_used_mb", ("beast", "1")): 20 * 1024,
        ("cortex_device_vram_free_mb", ("beast", "1")): 4 * 1024,
        ("cortex_device_utilization_pct", ("beast", "1")): 80,
        ("cortex_device_temp_c", ("beast", "1")): 61,
    }


def test_what_nobody_reported_has_no_gauge() -> None:
    replica = replace(REPLICA, max_in_flight=None, last_forward_age_s=None)
    cpu = DeviceInfo(index=0, kind="cpu", name="CPU", total_memory_bytes=GIB, free_memory_bytes=GIB)
    names = {name for name, _ in found(snapshot(replica, cpu))}
    assert "cortex_model_in_flight" in names and "cortex_device_vram_free_mb" in names
    assert names.isdisjoint(
        {
            "cortex_model_max_in_flight",
            "helexa_engine_last_forward_age_seconds",
            "cortex_device_utilization_pct",
            "cortex_device_temp_c",
        }
    )


def test_what_the_database_counts() -> None:
    counts = DatabaseCounts(load_jobs={"pending": 2}, reservations=7)
    families = list(database_metrics(counts))
    values = [(s.name, s.labels, s.value) for family in families for s in family.samples]
    assert values == [
        ("helexa_load_jobs", {"state": "pending"}, 2),
        ("helexa_reservations_open", {}, 7),
    ]
