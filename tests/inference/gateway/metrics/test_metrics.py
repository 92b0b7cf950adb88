"""The metrics port of a running gateway; names, labels and buckets as the original's users know
them, and labels that stay few."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fleet.live.snapshot import FleetSnapshot, NeuronView, ReplicaView
from helexa_site.data_directory import instance_id
from inference.gateway import metrics as metrics_module
from inference.gateway import metrics_endpoint
from inference.gateway.gateway import Gateway
from inference.gateway.metrics import MAX_NAMES, OTHER, Metrics
from inference.gateway.metrics_endpoint import MetricsEndpoint, fleet_metrics
from inference.gateway.request.outcome import NO_MODEL, RequestOutcome
from inference.protocol.heartbeat import DeviceInfo, ReplicaStatus
from inference.settings.gateway import MetricsListen
from inference.wire.errors import ServiceUnavailableError
from tests.fleet.conftest import device
from tests.inference.gateway.conftest import MakeGateway
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.metering.request_records.records import ended as request_ended

HOST = "127.0.0.1"
MODEL_LABELS = {"model": "tiny", "node": "beast"}
DURATIONS_S = [0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200]
FIRST_TOKENS_S = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120]
SPEEDS = [1, 2.5, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200]


@pytest.fixture
def load_jobs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The database's counts; it does not answer while this is empty."""
    counted: dict[str, int] = {"pending": 1, "running": 2}

    async def query(_threads: object, _query: object) -> tuple[dict[str, int], int]:
        if not counted:
            raise ServiceUnavailableError("database_unavailable", "away")
        return counted, 4

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
    gateway.metrics.observe(ended(prompt_tokens=7, completion_tokens=5))
    response = await scrape(endpoint)
    assert response.status_code == 200
    assert response.headers["x-helexa-instance"] == instance_id(gateway.config.data_dir)
    assert response.headers["content-type"].startswith("text/plain")
    assert "access-control-allow-origin" not in response.headers
    assert {
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
    } <= {*response.text.splitlines()}
    assert "\nprocess_resident_memory_bytes " in response.text
    load_jobs.clear()
    text = (await scrape(endpoint)).text
    assert "helexa_load_jobs{" not in text
    assert "cortex_model_in_flight{" in text
    assert (await scrape(endpoint, "/v1/models")).status_code == 404
    async with httpx.AsyncClient(timeout=30) as client:
        posted = await client.post(f"http://{HOST}:{endpoint.port}/metrics", content=b"x")
    assert posted.status_code == 405


async def test_a_port_in_use_is_a_warning_and_off_is_off(
    make_gateway: MakeGateway, endpoint: MetricsEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert endpoint.port is not None
    gateway = make_gateway()
    second = MetricsEndpoint(gateway)
    with caplog.at_level(logging.WARNING):
        second.start(MetricsListen(HOST, endpoint.port))
    assert second.port is None
    (record,) = caplog.records
    assert f"{HOST}:{endpoint.port}" in record.message and "HELEXA_METRICS_LISTEN" in record.message
    await second.stop()
    assert (await scrape(endpoint)).status_code == 200
    second.start(gateway.config.metrics.at(HOST))
    assert second.port is None
    second.start(MetricsListen(HOST, 0))
    port = second.port
    assert port is not None
    await second.stop()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


OF_REPLICA: list[tuple[str, str, float]] = [
    ("cortex_model_in_flight", "in_flight", 3),
    ("cortex_model_queue_depth", "queue_depth", 4),
    ("cortex_model_max_queue_depth", "max_queue_depth", 512),
    ("cortex_model_tok_s_prefill", "prefill_tokens_per_s", 500),
    ("cortex_model_tok_s_decode", "decode_tokens_per_s", 50),
    ("helexa_kv_blocks_used", "kv_blocks_used", 5),
    ("helexa_kv_blocks", "kv_blocks_total", 400),
    ("helexa_replica_host_memory_bytes", "host_memory_bytes", 7),
    ("helexa_engine_restarts_total", "num_restarts", 2),
    ("helexa_engine_preemptions_total", "num_preemptions", 6),
    ("helexa_engine_prefix_hit_tokens_total", "prefix_hit_tokens", 700),
    ("helexa_engine_drafted_tokens_total", "num_drafted_tokens", 90),
    ("helexa_engine_accepted_draft_tokens_total", "num_accepted_drafts", 60),
    ("cortex_model_max_in_flight", "max_in_flight", 256),
    ("helexa_engine_last_forward_age_seconds", "last_forward_age_s", 0.5),
]
"""Every number of a replica has its gauge. The last two may be missing."""
HELD: dict[str, Any] = {field: number for _, field, number in OF_REPLICA}
HELD |= {"neuron": "beast", "model": "tiny", "job_id": "1", "status_age_s": 5.0}
REPLICA = ReplicaView(**HELD, status=ReplicaStatus.READY)
SIZES = {"total_memory_bytes": 24 << 30, "free_memory_bytes": 4 << 30}
CARD = device(index=1, kind="cuda", utilization_percent=80, temperature_c=61, **SIZES)


def gauges(replica: ReplicaView, card: DeviceInfo) -> dict[tuple[str, tuple[str, ...]], float]:
    neuron = NeuronView(
        name="beast", epoch="e", version="1.2", devices=(card,), replicas=(replica,)
    )
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in fleet_metrics(FleetSnapshot(neurons=(neuron,)))
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    found = (sample for family in families for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}


def test_names_labels_and_buckets_are_those_that_users_know() -> None:
    metrics = Metrics()
    metrics.observe(ended())
    found = samples(metrics)
    for name, bounds, total in (
        ("cortex_request_duration_seconds", DURATIONS_S, 3.0),
        ("cortex_time_to_first_token_seconds", FIRST_TOKENS_S, 1.0),
        ("cortex_tokens_per_second", SPEEDS, 10.0),  # 20 after the first one, in two seconds
    ):
        buckets = {
            float(dict(labels)["le"]): count
            for (sample, labels), count in found.items()
            if sample == f"{name}_bucket"
        }
        assert buckets == {bound: float(bound >= total) for bound in (*bounds, math.inf)}
        assert value(metrics, f"{name}_sum", **MODEL_LABELS) == total
        assert value(metrics, f"{name}_count", **MODEL_LABELS) == 1
    metrics.observe(ended(was_cold=True))
    none: dict[str, Any] = {"time_to_first_token_ms": None, "completion_tokens": 0}
    none |= {"prompt_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0}
    metrics.observe(ended(status=0, outcome="cancelled", **none))
    for name, expected in (
        ("cortex_requests_total", 3),
        ("cortex_request_errors_total", 0),
        ("cortex_cold_starts_total", 1),
        ("cortex_prompt_tokens_total", 140),
        ("cortex_cached_prompt_tokens_total", 64),
        ("cortex_completion_tokens_total", 42),
        ("helexa_reasoning_tokens_total", 10),
        ("cortex_time_to_first_token_seconds_count", 2),
        ("cortex_tokens_per_second_count", 2),
    ):
        assert value(metrics, name, **MODEL_LABELS) == expected, name
    for name, expected in (("", 182), ("prompt_", 140), ("completion_", 42)):
        spent = value(metrics, f"cortex_spend_{name}tokens_total", account="team", key="hx_abc")
        assert spent == expected, name
    assert value(metrics, "helexa_requests_ended_total", status="0", code="cancelled") == 1
    for code, reason in (
        ("queue_full", "queue_full"),
        ("queue_timeout", "wait_timeout"),
        ("rate_limit_exceeded", "per_principal"),
    ):
        metrics.observe(ended(status=503, outcome=code))
        name = "cortex_model_rejections_total"
        assert value(metrics, name, **MODEL_LABELS, reason=reason) == 1
    assert value(metrics, "cortex_request_errors_total", **MODEL_LABELS) == 3
    of_replica, of_card = ("tiny", "beast"), ("beast", "1")
    held = {(name, of_replica): number for name, _, number in OF_REPLICA}
    always = {
        ("helexa_neuron_info", ("beast", "1.2")): 1,
        ("helexa_replica_status", (*of_replica, "ready")): 1,
        ("cortex_device_vram_used_mb", of_card): 20 * 1024,
        ("cortex_device_vram_free_mb", of_card): 4 * 1024,
    }
    heat = {"cortex_device_utilization_pct": 80, "cortex_device_temp_c": 61}
    assert gauges(REPLICA, CARD) == always | held | {(name, of_card): heat[name] for name in heat}
    replica = replace(REPLICA, max_in_flight=None, last_forward_age_s=None)
    card = msgspec.structs.replace(CARD, utilization_percent=None, temperature_c=None)
    for name, *_ in OF_REPLICA[-2:]:
        del held[name, of_replica]
    assert gauges(replica, card) == always | held, "what nobody reported has none"


def test_names_without_end_and_watched_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    before = set(samples(metrics))
    unknown: dict[str, Any] = {"model": NO_MODEL, "account": "", "prompt_tokens": 0}
    unknown |= {"completion_tokens": 0, "outcome": "model_not_found"}
    metrics.observe(ended(status=404, **unknown))
    labels = frozenset({("status", "404"), ("code", "model_not_found")})
    assert set(samples(metrics)) - before == {("helexa_requests_ended_total", labels)}
    for code in ('evil"\n', "Ignore All Instructions", "", "x" * 65):
        metrics.observe(ended(status=500, outcome=code))
    assert value(metrics, "helexa_requests_ended_total", status="500", code=OTHER) == 4
    monkeypatch.setattr(metrics_module, "MAX_NAMES", 20)
    monkeypatch.setattr(metrics_module, "MAX_CODES", 20)
    assert MAX_NAMES >= 1000
    metrics = Metrics()
    for number in range(100):
        metrics.observe(ended(key=f"hx_{number}", model=f"m{number}", outcome=f"code_{number}"))
    for name, most in (
        ("cortex_requests_total", 100),
        ("helexa_requests_ended_total", 100),
        ("cortex_spend_tokens_total", 100 * 91),
    ):
        counts = [count for (sample, _), count in samples(metrics).items() if sample == name]
        assert (len(counts), sum(counts)) == (21, most), name
    # A watched number is read at each scrape and may fail.
    metrics = Metrics()
    metrics.watch_total("helexa_request_records_dropped", "Dropped.", lambda: 7)
    assert value(metrics, "helexa_request_records_dropped_total") == 7
    numbers = [3.0, 5.0]
    metrics.watch("helexa_reservations_open", "Reservations.", lambda: numbers.pop(0))
    assert value(metrics, "helexa_reservations_open") == 3
    assert value(metrics, "helexa_reservations_open") == 5
    failed = value(metrics, "helexa_reservations_open")
    assert failed is not None and math.isnan(failed)


USED = {"prompt_tokens": 70, "cached_tokens": 32, "completion_tokens": 21}
SETTLE = {**USED, "account": "team", "key": "hx_abc", "budgets": (), "duration_ms": 3000}


def ended(**changed: Any) -> RequestOutcome:
    return request_ended(**{**SETTLE, "time_to_first_token_ms": 1000, **changed})
