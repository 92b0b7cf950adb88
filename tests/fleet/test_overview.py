"""The fleet at one look, and what needs attention first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from fleet import selectors, services
from fleet.catalogue import CatalogueEntry
from fleet.dashboard.board import board_of
from fleet.dashboard.rows import neuron_rows
from fleet.live import reading as live
from fleet.models import Download, LoadJob, Neuron
from fleet.overview import fleet_overview, why_no_host, why_not_now
from fleet.overview_lines import (
    LIMITS,
    DeviceLine,
    HeldMemory,
    ModelLine,
    NeuronLine,
    ReplicaLine,
    attention,
)
from inference.protocol import keys
from inference.protocol.neuron_tasks import CacheReport, encode_cache_report
from inference.protocol.refusals import Cause, Refused
from metering.audit import COMMAND
from metering.models import UsageHour
from metering.selectors import BudgetStatus
from tests.fleet.conftest import GIB, offer
from tests.metering.request_records.records import ended, insert

pytestmark = pytest.mark.django_db


def test_neurons_devices_replicas_and_models(beat, build, monkeypatch) -> None:
    offer()
    offer("wanted", min_replicas=1)
    cards = [build.device(kind="cuda", index=index, utilization_percent=71) for index in (0, 1)]
    for stages in ([build.stage()], []):
        beat(devices=cards, stages=stages)
        overview = fleet_overview()
        (neuron,) = overview.neurons
        held = (HeldMemory(model="large", num_bytes=3 * GIB),) * len(stages)
        assert neuron.devices[0].held == held and not neuron.replicas
        (row,) = neuron_rows(overview, [neuron])
        assert row["load"] == ("stages of other hosts' models" if stages else "nothing loaded")
    stats = build.stats(in_flight=2, kv_blocks_used=16, decode_tokens_per_s=40.0)
    both = {"devices": ["cuda:0", "cuda:1"], "memory_bytes": 6 * GIB}
    beat(devices=cards, replicas=[build.replica(stats=stats, **both)])
    overview = fleet_overview()
    (neuron,) = overview.neurons
    card = neuron.devices[1]
    assert (card.id, card.utilization_percent) == ("cuda:1", 71)
    assert card.held == (HeldMemory(model="tiny", num_bytes=3 * GIB),)
    (replica,) = neuron.replicas
    assert (replica.in_flight, replica.kv_blocks_used, replica.kv_blocks_total) == (2, 16, 64)
    models = {one.name: (one.status, one.replicas, one.has_outdated) for one in overview.models}
    assert models == {"tiny": ("ready", 1, False), "wanted": ("unloaded", 0, False)}
    assert [finding.kind for finding in overview.attention] == ["too_few_replicas"]
    for wish, coming_back in ((services.neuron_drain, ()), (services.neuron_resume, ("tiny",))):
        wish(actor=COMMAND, neuron_name="beast")
        assert fleet_overview().neurons[0].coming_back == coming_back
    nowhere = redis.Redis.from_url("unix:///nonexistent/redis.sock")
    monkeypatch.setattr(live, "redis_client", lambda: nowhere)
    overview = fleet_overview()
    assert not overview.is_live and overview.attention[0].kind == "redis_away"
    assert overview.neurons[0].devices[0].utilization_percent is None


def test_disks_downloads_and_jobs(beat, build, redis_db, sent, model) -> None:
    beat()
    disk = {"disk_total_bytes": 100 * GIB, "disk_free_bytes": 4 * GIB}
    report = CacheReport(neuron="beast", time_unix_s=110.0, cached=[], jobs=[], **disk)
    redis_db.set(keys.downloads_key("beast"), encode_cache_report(report))
    now = timezone.now()
    times = {"started_at": now - timedelta(seconds=10), "reported_at": now}
    pull = {"neuron": Neuron.objects.get(), "source": "huggingface:org/big", "status": "running"}
    Download.objects.create(**pull, **times, bytes_done=25, bytes_total=100)
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
    def used(minutes_ago: int, tokens: int, **changes: Any) -> None:
        ended_unix_s = (now - timedelta(minutes=minutes_ago)).timestamp()
        figures = {"prompt_tokens": tokens, "completion_tokens": 1, **changes}
        insert(ended(ended_unix_s=ended_unix_s, **figures))

    beat()
    now = timezone.now()
    monkeypatch.setattr("django.utils.timezone.now", lambda: now)  # it may be midnight soon
    for minutes_ago, tokens in ((0, 100), (0, 20), (5, 3), (120, 9)):
        used(minutes_ago, tokens)
    used(0, 0, status=429, outcome="rate_limited", completion_tokens=0)
    midnight = datetime.combine(now.date(), datetime.min.time(), UTC)
    of_tiny = {"account": "research", "model": "tiny"}
    UsageHour.objects.create(hour=midnight, requests=4, cost_micro_usd=20, **of_tiny)
    UsageHour.objects.create(hour=midnight - timedelta(hours=1), cost_micro_usd=500, **of_tiny)
    overview = fleet_overview()
    assert len(overview.minutes) == 30
    assert sum(minute.requests for minute in overview.minutes) == 3
    assert sum(minute.tokens for minute in overview.minutes) == 126
    assert (overview.requests_today, overview.spent_today_micro_usd) == (4, 20)
    used(1, 7)
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


VERSION = "2.0"


def neuron(name: str = "beast", **changes: Any) -> NeuronLine:
    nothing: dict[str, Any] = dict.fromkeys(("problems", "devices", "replicas"), ())
    return NeuronLine(**{"name": name, "status": "online", "version": VERSION} | nothing | changes)


def replica(**changes: Any) -> ReplicaLine:
    counts = ("in_flight", "queue_depth", "kv_blocks_used", "kv_blocks_total")
    values: dict[str, Any] = dict.fromkeys((*counts, "decode_tokens_per_s"), 0)
    values |= {"id": 1, "model": "tiny", "status": "ready", "is_outdated": False}
    return ReplicaLine(**values | {"devices": ("cuda:0",), "memory_bytes": None} | changes)


def budget(left: int, **changes: Any) -> BudgetStatus:
    values: dict[str, Any] = {"id": 1, "on": "account", "owner": "research", "unit": "micro_usd"}
    values |= {"cap": 10_000_000, "spent": 10_000_000 - left, "reserved": 0, "left": left}
    values |= {"window": "balance", "window_s": None, "window_ends_unix_s": None}
    return BudgetStatus(**values | changes)


WELL: dict[str, Any] = {
    "neurons": (neuron(replicas=(replica(),), disk_total_bytes=100, disk_free_bytes=50),),
    "models": (),
    "budgets": (),
    "is_live": True,
}


def test_what_needs_attention_first() -> None:
    def finds(changes: dict[str, Any], *expected: str) -> None:
        found = attention(version=VERSION, **WELL | changes)
        words = [f"{one.level} {one.kind}: {one.text}" for one in found]
        assert len(words) == len(expected), words
        for text, start in zip(words, expected, strict=True):
            assert text.startswith(start)

    def of_neuron(*expected: str, **changes: Any) -> None:
        finds({"neurons": (neuron(**changes),)}, *expected)

    def of_replica(*expected: str, **changes: Any) -> None:
        of_neuron(*expected, replicas=(replica(**changes),))

    def of_model(least: int, has: int, *expected: str) -> None:
        values = {"status": "ready", "replicas": has, "min_replicas": least, "max_replicas": 4}
        finds({"models": (ModelLine(name="tiny", pinned=False, **values),)}, *expected)

    def by_a_limit(account: str, cause: str = "") -> Refused:
        return Refused("rate_limit_exceeded", account, cause=cause)

    finds({})
    finds({"is_live": False}, "urgent redis_away: Redis does not answer")
    finds({"neurons": ()}, "warning no_neuron: no neuron has joined yet")
    of_neuron("urgent neuron_away: beast is away", status="away", version="1.0")
    of_neuron("notice neuron_refused: beast is not admitted", status="refused")
    of_neuron("warning neuron_problem: beast: no driver", problems=("no driver",))
    failing = {"status": "failed", "failure": "out of memory"}
    of_replica("urgent model_failing: tiny failed on beast: out of memory", **failing)
    of_replica("warning outdated: tiny on beast is outdated: reload it", is_outdated=True)
    of_replica(is_outdated=True, status="draining")
    older = neuron(version="1.0", problems=("it runs helexa 1.0, and the control 2.0",))
    finds(
        {"neurons": (older, neuron("box", version="1.5"), neuron("new"))},
        "warning version_mismatch: not of this version, 2.0: beast (1.0), box (1.5)",
    )
    nearly = "disk_nearly_full: the disk of beast is nearly full:"
    for free, expected in ((10, ()), (9, (f"warning {nearly} 9%",)), (1, (f"urgent {nearly} 1%",))):
        of_neuron(*expected, disk_total_bytes=100, disk_free_bytes=free)
    few = "too_few_replicas: tiny has"
    of_model(1, 1)
    of_model(1, 0, f"urgent {few} 0 of at least 1 replicas")
    of_model(2, 1, f"warning {few} 1 of at least 2 replicas")
    of_research = "the budget of the account research:"
    finds(
        {"budgets": (budget(500_000),)},
        f"notice budget_nearly_spent: {of_research} $0.50 of $10.00 are",
    )
    finds(
        {"budgets": (budget(0, unit="tokens", on="key", owner="hx-1"),)},
        "notice budget_spent: the budget of the key hx-1: 0 tokens of 10,000,000 tokens",
    )
    refused = {
        by_a_limit("research", "requests_per_minute"): 1200,
        by_a_limit("research", "key_budget"): 30,
        by_a_limit("old"): 20,
        by_a_limit("crowd", "queue_share"): 5,
        Refused("insufficient_quota", "lab", cause="account_budget"): 1,
        Refused("model_not_found", "research"): 9,
        by_a_limit(""): 9,
    }
    finds(
        {"refused": refused},
        "notice account_refused: research was refused 1,200 times lately by a limit of requests a",
        "notice account_refused: research was refused 30 times lately by a key's budget",
        "notice account_refused: old was refused 20 times lately by its limits or its",
        "notice account_refused: crowd was refused 5 times lately by a queue, of whose",
        "notice account_refused: lab was refused once lately by its budget",
    )
    assert LIMITS.keys() == set(Cause), "every cause has its words"
    broke = (("research", "hx-bad", 3), ("research", "hx-unlucky", 2), ("anonymous", "", 4))
    finds(
        {"refused": {Refused("request_broke_worker", who, key): num for who, key, num in broke}},
        "urgent key_breaks_workers: the key hx-bad of research sent 3 requests lately that",
        "urgent key_breaks_workers: anonymous sent 4 requests lately",
    )
    finds(
        {
            "neurons": (neuron(problems=("no driver",)), neuron("gone", status="away")),
            "budgets": (budget(0),),
            "refused": {Refused("insufficient_quota", "research"): 17},
        },
        "urgent neuron_away: gone is away",
        "warning neuron_problem: beast: no driver",
        f"notice budget_spent: {of_research} $0.00",
    )


def host(name: str, *sizes: float, status: str = "online", kind: str = "cuda") -> NeuronLine:
    """With a device of each of these sizes in GiB."""
    devices = tuple(
        DeviceLine(
            id=f"{kind}:{index}",
            name=f"the {kind}",
            total_memory_bytes=int(size * GIB),
            free_memory_bytes=0,
        )
        for index, size in enumerate(sizes)
    )
    return neuron(name, status=status, devices=devices)


def test_why_no_host_can_run_it() -> None:
    small, large = {"vram_mb": 20 * 1024}, {"vram_mb": 40 * 1024}
    nobody = "it needs a card or a processor of {} GiB or more{}"
    processor, card = host("b", 16, kind="cpu"), host("a", 24)
    card = replace(card, devices=(*card.devices, *host("a", 64, kind="cpu").devices))
    away, refused = (host("c", 64, status=word, kind="cpu") for word in ("away", "refused"))
    beside = ", and the largest is the cpu of b with 16.0 GiB"
    for values, hosts, why in (
        (small, [card], ""),
        (large, [card], ""),  # its processors have the room
        (large, [], ""),  # no fleet yet
        (large, [processor, away], ""),
        (large, [processor], nobody.format("40.0", beside)),
        (small, [refused], nobody.format("20.0", ", and no host has one")),
        (
            small | {"pinned_on": ("b",)},
            [card, processor],
            nobody.format("20.0", f" on b, by its pinned_on{beside}"),
        ),
    ):
        entry = CatalogueEntry(name="tiny", source="pypi:tiny", **values)
        assert why_no_host(entry, hosts) == why
    of_20 = CatalogueEntry(name="tiny", source="pypi:tiny", **small)
    draining, gone = host("a", 24, status="draining"), host("d", 24, status="away")
    for hosts, words in (
        ([draining, gone, processor], "a is draining, d is away"),
        ([draining, host("e", 24)], ""),
        ([processor], ""),
    ):
        assert why_not_now(of_20, hosts) == words
