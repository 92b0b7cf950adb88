"""Fills the database and the Redis of the pages' server, in a process of its own.

An operator (olga) and a member (mia), a fleet of one neuron that is here and one that is away, a
month of usage, and a bench whose last build got slower. There is a row of every kind that the admin
has, so that every page of its can be opened.
"""

from __future__ import annotations

import time
from datetime import timedelta

from django.contrib.auth.models import Group, User
from django.utils import timezone

from fleet import services
from fleet.live import reading as live
from fleet.live.desired_state import AdmissionPolicy
from fleet.models import CatalogueModel, Download, LoadJob, Neuron
from fleet.services.invitations import share_record
from inference.protocol import keys
from inference.protocol.heartbeat import encode_heartbeat
from inference.protocol.keys import downloads_key
from inference.protocol.neuron_tasks import CachedModel, CacheReport, encode_cache_report
from inference.protocol.refusals import Refused, encode_field, refusals_key
from inference.version import VERSION
from metering import services as of_metering
from metering.audit import COMMAND, user_actor
from metering.bench.models import BenchTarget, SweepPlan
from metering.bench.services import row_save
from metering.models import Account, Budget, LedgerEntry, UsageHour
from tests.browser.pages import PASSWORD, REQUEST_ID, Who
from tests.fleet.conftest import device, heartbeat, ordered, replica, report
from tests.inference.reports import engine_stats
from tests.metering.bench import results
from tests.metering.request_records.records import ended, insert

GIB = 1024**3


def main() -> None:
    User.objects.create_superuser(Who.OPERATOR, password=PASSWORD)
    member = User.objects.create_user(Who.MEMBER, password=PASSWORD)
    account = of_metering.account_create(actor=COMMAND, name="research")
    of_metering.membership_set(actor=COMMAND, account=account, user=member, role="member")
    budget = Budget(account=account, unit="micro_usd", cap=10_000_000, window="month")
    of_metering.budget_create(actor=COMMAND, budget=budget)
    _fleet()
    _operations()
    _people(account)
    _usage()
    _requests()
    results.a_regression()


def _fleet() -> None:
    for name in ("tiny", "big"):
        services.catalogue_model_create(
            actor=COMMAND,
            name=name,
            source=f"pypi:{name}",
            input_price_micro_usd=150_000,
            output_price_micro_usd=600_000,
        )
    now_s = time.time()
    card = {"kind": "cuda", "name": "NVIDIA GeForce RTX 3090", "total_memory_bytes": 24 * GIB}
    beat = heartbeat(
        "beast",
        version=VERSION,
        time_unix_s=now_s,
        started_unix_s=now_s - 600,
        devices=[
            device(index=0, utilization_percent=71, temperature_c=63, power_w=250.0, **card),
            device(index=1, **card),
        ],
        replicas=[
            replica(
                since_unix_s=now_s - 60,
                devices=["cuda:0"],
                memory_bytes=9 * GIB,
                report=report(context_reason="the model's own limit of 1,024 tokens"),
                stats=engine_stats(in_flight=2, kv_blocks_used=16, decode_tokens_per_s=41.5),
            )
        ],
    )
    services.heartbeat_record(heartbeat=beat)
    now = timezone.now()
    Neuron.objects.create(
        name="attic", status="away", status_since=now, started_at=now, last_seen_at=now
    )
    client = live.redis_client()
    client.zadd(keys.NEURONS, {beat.name: now_s})
    client.set(keys.heartbeat_key(beat.name), encode_heartbeat(ordered(beat)))
    client.hincrby(refusals_key(now_s), encode_field(Refused("insufficient_quota", "research")), 17)


def _operations() -> None:

    services.alias_create(
        actor=COMMAND, name="smart", model=CatalogueModel.objects.get(name="tiny")
    )
    services.admission_policy_set(actor=COMMAND, policy=AdmissionPolicy.AUTOMATIC)
    share_record(actor=COMMAND, address="10.0.0.5:6379", is_tls=False, certificate="")
    services.neuron_invite(actor=COMMAND, neuron_name="cellar")
    services.upstream_create(actor=COMMAND, name="box", url="http://box:8000/v1", key="sk-box")
    beast = Neuron.objects.get(name="beast")
    earlier = timezone.now() - timedelta(hours=1)
    LoadJob.objects.create(
        model_name="tiny",
        neuron=beast,
        requested_by="user:olga",
        status="failed",
        stage="weights",
        failure_code="out_of_memory",
        failure_message="it needs 31.0 GiB, and 24.0 GiB are free on cuda:1",
        finished_at=earlier,
    )
    LoadJob.objects.create(
        model_name="tiny", neuron=beast, status="succeeded", stage="warmup", finished_at=earlier
    )
    repository = "huggingface:example/a-model-with-quite-a-long-name-GGUF"
    Download.objects.create(
        neuron=beast,
        source=repository,
        file="Q4_K_M",
        status="running",
        bytes_done=7 * GIB,
        bytes_total=18 * GIB,
        started_at=earlier,
    )
    cached = [
        CachedModel(source="pypi:tiny", revision="1.0", num_bytes=GIB, used_by=["tiny"]),
        CachedModel(
            source=repository, revision="0123456789abcdef" * 2, num_bytes=7 * GIB, is_partial=True
        ),
        CachedModel(source="huggingface:example/older", revision="ab" * 20, num_bytes=9 * GIB),
    ]
    report = CacheReport(
        neuron="beast",
        time_unix_s=time.time(),
        disk_total_bytes=1000 * GIB,
        disk_free_bytes=60 * GIB,
        cached=cached,
        jobs=[],
    )
    live.redis_client().set(downloads_key("beast"), encode_cache_report(report))


def _people(account: Account) -> None:
    Group.objects.create(name="watchers")
    of_metering.key_create(actor=user_actor(Who.MEMBER), account=account, name="mia's editor")
    peer = BenchTarget(name="peer", kind="openai", endpoint="http://peer.example.org:8080/v1")
    row_save(actor=user_actor(Who.OPERATOR), row=peer)
    row_save(actor=user_actor(Who.OPERATOR), row=SweepPlan())


def _usage() -> None:
    now = timezone.now()
    hour = now.replace(minute=0, second=0, microsecond=0)
    for day in range(20):
        UsageHour.objects.create(
            hour=hour - timedelta(days=day),
            account="research",
            key="hx-0123456789",
            model="tiny" if day % 3 else "big",
            requests=100 + day,
            prompt_tokens=20_000 * (day % 5 + 1),
            completion_tokens=5_000,
            cost_micro_usd=310_000 + 1_234 * day,
        )
    for minute in range(25):
        LedgerEntry.objects.create(
            request_id=f"seed-{minute}",
            at=now - timedelta(minutes=minute),
            account="research",
            model="tiny",
            neuron="beast",
            endpoint="/v1/chat/completions",
            outcome="engine_crashed" if minute == 3 else "finished",
            prompt_tokens=200 * (minute % 4 + 1),
            cached_tokens=0,
            completion_tokens=50,
            reasoning_tokens=0,
            cost_micro_usd=100,
            duration_ms=900,
        )


def _requests() -> None:
    own = {"account": "research", "key": "hx-0123456789", "end_user": "ann@example.org"}
    now_s = time.time()
    insert(
        ended(
            REQUEST_ID,
            **own,
            ended_unix_s=now_s - 60,
            status=503,
            outcome="neuron_lost",
            error_message="The neuron beast went away while it worked on this.",
        ),
        ended(ended_unix_s=now_s, status=401, outcome="invalid_api_key", account="", key=""),
        *(ended(**own, ended_unix_s=now_s - 90 * number) for number in range(1, 60)),
    )
