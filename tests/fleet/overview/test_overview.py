"""The fleet at one look: what it holds, and that its queries do not grow with the fleet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet import selectors, services
from fleet.dashboard.board import board_of
from fleet.dashboard.rows import neuron_rows
from fleet.live import reading as live
from fleet.models import Download, LoadJob, Neuron
from fleet.overview.lines import HeldMemory
from fleet.overview.selector import fleet_overview
from inference.protocol import keys
from inference.protocol.downloads import CacheReport, encode_cache_report
from metering.actor import COMMAND
from metering.models import UsageHour
from metering.request_records import rows
from tests.metering.request_records.records import ended

pytestmark = pytest.mark.django_db

GIB = 1024**3


def used(at: datetime, tokens: int, **changes: Any) -> None:
    figures = {"prompt_tokens": tokens, "completion_tokens": 1, **changes}
    rows.insert([ended(ended_unix_s=at.timestamp(), **figures)])


def test_neurons_devices_replicas_and_models(beat, build, monkeypatch) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    wanted = {"name": "wanted", "source": "pypi:wanted", "min_replicas": 1}
    services.catalogue_model_create(actor=COMMAND, **wanted)
    cards = [
        build.device(kind="cuda", index=index, utilization_percent=71, temperature_c=63)
        for index in (0, 1)
    ]
    for stages in ([build.stage()], []):
        beat(devices=cards, stages=stages)
        overview = fleet_overview()
        (neuron,) = overview.neurons
        held = (HeldMemory(model="large", num_bytes=3 * GIB),) * len(stages)
        assert neuron.devices[0].held == held and not neuron.replicas
        (row,) = neuron_rows(overview, [neuron])
        assert row["load"] == ("stages of other hosts' models" if stages else "nothing loaded")
    loaded = build.replica(
        devices=["cuda:0", "cuda:1"],
        memory_bytes=6 * GIB,
        stats=build.stats(in_flight=2, kv_blocks_used=16, decode_tokens_per_s=40.0),
    )
    beat(devices=cards, replicas=[loaded])
    overview = fleet_overview()
    (neuron,) = overview.neurons
    card = neuron.devices[1]
    assert (card.id, card.utilization_percent, card.temperature_c) == ("cuda:1", 71, 63)
    assert card.held == (HeldMemory(model="tiny", num_bytes=3 * GIB),)
    (replica,) = neuron.replicas
    assert (replica.in_flight, replica.kv_blocks_used, replica.kv_blocks_total) == (2, 16, 64)
    models = {one.name: (one.status, one.replicas, one.has_outdated) for one in overview.models}
    assert models == {"tiny": ("ready", 1, False), "wanted": ("unloaded", 0, False)}
    assert [finding.kind for finding in overview.attention] == ["too_few_replicas"]
    services.neuron_drain(actor=COMMAND, neuron_name="beast")
    assert fleet_overview().neurons[0].coming_back == (), "it drains still"
    services.neuron_resume(actor=COMMAND, neuron_name="beast")
    assert fleet_overview().neurons[0].coming_back == ("tiny",)
    nowhere = redis.Redis.from_url("unix:///nonexistent/redis.sock")
    monkeypatch.setattr(live, "redis_client", lambda: nowhere)
    overview = fleet_overview()
    assert not overview.is_live and overview.attention[0].kind == "redis_away"
    assert overview.neurons[0].devices[0].utilization_percent is None


def test_disks_downloads_and_jobs(beat, build, redis_db, sent) -> None:
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    beat()
    disk = {"disk_total_bytes": 100 * GIB, "disk_free_bytes": 4 * GIB}
    report = CacheReport(neuron="beast", time_unix_s=110.0, cached=[], jobs=[], **disk)
    redis_db.set(keys.downloads_key("beast"), encode_cache_report(report))
    now = timezone.now()
    Download.objects.create(
        neuron=Neuron.objects.get(),
        kind="pull",
        source="huggingface:org/big",
        status="running",
        bytes_done=25,
        bytes_total=100,
        started_at=now - timedelta(seconds=10),
        reported_at=now,
    )
    overview = fleet_overview()
    (download,) = overview.downloads
    assert (download.source, download.progress_fraction) == ("huggingface:org/big", 0.25)
    assert download.eta_s == pytest.approx(30.0)
    assert [finding.kind for finding in overview.attention] == ["disk_nearly_full"]
    redis_db.set(keys.downloads_key("beast"), b"{")
    assert fleet_overview().attention == ()
    job = services.load_job_start(actor=COMMAND, model_name="tiny", neuron_name="beast")
    assert [line.is_active for line in fleet_overview().jobs] == [True]
    beat(replicas=[build.replica(job_id=str(job.pk))])
    (line,) = fleet_overview().jobs
    assert (line.status, line.is_active) == ("succeeded", False), "it is shown for a while"
    LoadJob.objects.update(finished_at=timezone.now() - timedelta(minutes=3))
    assert fleet_overview().jobs == ()


def test_traffic_by_minute_and_what_today_cost(beat, monkeypatch) -> None:
    beat()
    now = timezone.now()
    monkeypatch.setattr("django.utils.timezone.now", lambda: now)  # it may be midnight soon
    used(now, 100)
    used(now, 20)
    used(now - timedelta(minutes=5), 3)
    used(now - timedelta(hours=2), 9)
    used(now, 0, status=429, outcome="rate_limited", completion_tokens=0)
    midnight = datetime.combine(now.date(), datetime.min.time(), UTC)
    UsageHour.objects.create(
        hour=midnight, account="research", model="tiny", requests=4, cost_micro_usd=20
    )
    UsageHour.objects.create(
        hour=midnight - timedelta(hours=1), account="research", model="tiny", cost_micro_usd=500
    )
    overview = fleet_overview()
    assert len(overview.minutes) == 30
    assert sum(minute.requests for minute in overview.minutes) == 3
    assert sum(minute.tokens for minute in overview.minutes) == 126
    assert (overview.requests_today, overview.spent_today_micro_usd) == (4, 20)
    used(now - timedelta(minutes=1), 7)
    values = [tile["value"] for tile in board_of(fleet_overview())["tiles"]]
    assert values == ["1", "8", "0", "0", "$0.00002"], "the last whole minute counts"


def test_its_queries_do_not_grow_with_the_fleet(beat, build) -> None:
    def num_queries(hosts: str, num_replicas: int) -> int:
        for host in hosts:
            replicas = [build.replica(model=f"m{number}") for number in range(num_replicas)]
            beat(host, devices=[build.device(kind="cuda")], replicas=replicas)
        fleet_overview()
        selectors.catalogue_cache_clear()  # else one of both may find it too old
        with CaptureQueriesContext(connection) as queries:
            assert len(fleet_overview().neurons) == len(hosts)
        return len(queries)

    assert num_queries("ab", 1) == num_queries("abcdefghijkl", 10) <= 14
