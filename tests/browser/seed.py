"""Fills the database and the Redis of the pages' server: ``python -m tests.browser.seed``.

An operator (olga) and a member (mia), a fleet of one neuron that is here and one that is away, a
month of usage, and a bench whose last build got slower.
"""

from __future__ import annotations

import time
from datetime import timedelta

import django

PASSWORD = "what-people-type-here"
OPERATOR, MEMBER = "olga", "mia"
GIB = 1024**3


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from metering import services
    from metering.actor import COMMAND

    call_command("migrate", verbosity=0)
    User.objects.create_superuser(OPERATOR, password=PASSWORD)
    member = User.objects.create_user(MEMBER, password=PASSWORD)
    account = services.account_create(actor=COMMAND, name="research")
    services.membership_set(actor=COMMAND, account=account, user=member, role="member")
    cap = services.Cap(unit="micro_usd", cap=10_000_000, window="month")
    services.budget_create(actor=COMMAND, account=account, cap=cap)
    _fleet()
    _usage()
    _bench()


def _fleet() -> None:
    from django.utils import timezone

    from fleet import live, services
    from fleet.models import Neuron
    from inference.protocol import keys
    from inference.protocol.heartbeat import encode_heartbeat
    from inference.protocol.refusals import Refused, encode_field, refusals_key
    from inference.version import VERSION
    from metering.actor import COMMAND
    from tests.fleet.conftest import device, heartbeat, replica, report, stats

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
                stats=stats(in_flight=2, kv_blocks_used=16, decode_tokens_per_s=41.5),
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
    client.set(keys.heartbeat_key(beat.name), encode_heartbeat(beat))
    client.hincrby(refusals_key(now_s), encode_field(Refused("insufficient_quota", "research")), 17)


def _usage() -> None:
    from django.utils import timezone

    from metering.models import LedgerEntry, UsageHour

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


def _bench() -> None:
    from tests.metering.bench import results

    results.a_regression()


if __name__ == "__main__":
    main()
