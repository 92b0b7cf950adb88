"""Gateways that died: what no neuron reports is released."""

from __future__ import annotations

import pytest
import redis
from django.conf import settings
from django.db import OperationalError

from fleet.control.leadership import Leadership
from fleet.live import reading as live
from inference.protocol.held import HeldRequests, encode_held_requests
from inference.protocol.keys import NEURONS, gateway_alive_key, held_key
from metering import tasks
from metering.ledger import orphans, settlement
from metering.ledger.orphans import HELD_LIMIT_S, SWEEP_GRACE_S
from metering.ledger.receipts import Receipts
from metering.ledger.sweep_pause import SweepPause
from metering.models import GatewayLease, LedgerEntry
from tests.metering.reported_usage import NOW_UNIX_S, amounts, hold, publish, receipt, report

pytestmark = pytest.mark.django_db(transaction=True)


def lease(gateway_id: str, ago_s: float) -> None:
    until_s = int(NOW_UNIX_S - ago_s)
    GatewayLease.objects.create(gateway_id=gateway_id, lease_until_unix_s=until_s)


def sweep(client: redis.Redis) -> int:
    return orphans.reservations_sweep(client=client, now_unix_s=NOW_UNIX_S)


def test_a_dead_gateways_reservation_is_released(redis_db: redis.Redis) -> None:
    id = hold()
    lease("g1", SWEEP_GRACE_S + 1)
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)
    assert not LedgerEntry.objects.exists()
    assert GatewayLease.objects.exists()


def test_one_without_a_lease_is_dead_as_well(redis_db: redis.Redis) -> None:
    id = hold()
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)


def test_a_lease_or_a_sign_of_life_protects(redis_db: redis.Redis) -> None:
    id = hold()
    other = hold("r2", gateway_id="g2")
    lease("g1", SWEEP_GRACE_S - 1)
    lease("g2", SWEEP_GRACE_S + 1)
    redis_db.set(gateway_alive_key("g2"), b"1")
    assert sweep(redis_db) == 0
    assert amounts(id) == amounts(other) == (0, 300)
    redis_db.delete(gateway_alive_key("g2"))
    assert sweep(redis_db) == 1
    assert (amounts(id), amounts(other)) == ((0, 300), (0, 0))


def test_what_a_neuron_still_works_on_is_not_swept(redis_db: redis.Redis) -> None:
    id = hold()
    redis_db.zadd(NEURONS, {"beast": 1.0})
    listed = HeldRequests(epoch="e", beat=1, request_ids=["r1"])
    redis_db.hset(held_key("beast"), "g1", encode_held_requests(listed))
    assert sweep(redis_db) == 0
    assert amounts(id) == (0, 300)
    redis_db.hdel(held_key("beast"), "g1")
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)


@pytest.mark.parametrize("held", [b"", b"\xc1", b"x" * 2_000_000])
def test_a_list_that_nobody_can_read_keeps_nothing(redis_db: redis.Redis, held: bytes) -> None:
    id = hold()
    redis_db.zadd(NEURONS, {"beast": 1.0, "typed": 1.0, "\x1b[31m": 1.0})
    redis_db.hset(held_key("beast"), "g1", held)
    redis_db.set(held_key("typed"), b"no hash")
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)


def test_no_neuron_keeps_a_reservation_for_ever(redis_db: redis.Redis) -> None:
    id = hold()
    redis_db.zadd(NEURONS, {"beast": 1.0})
    listed = HeldRequests(epoch="e", beat=1, request_ids=["r1"])
    redis_db.hset(held_key("beast"), "g1", encode_held_requests(listed))
    lease("g1", HELD_LIMIT_S - 1)
    assert sweep(redis_db) == 0
    GatewayLease.objects.update(lease_until_unix_s=int(NOW_UNIX_S - HELD_LIMIT_S - 1))
    assert sweep(redis_db) == 1
    assert amounts(id) == (0, 0)


def test_reports_that_break_hold_up_no_sweep(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = hold()
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)

    def broken(**_: object) -> int:
        raise redis.ResponseError("nobody knows")

    monkeypatch.setattr(settlement, "usage_reports_settle", broken)
    tasks.settle_orphans()
    assert amounts(id) == (0, 0)


def test_reports_come_before_the_sweep(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = hold()
    publish(redis_db, report(sealed=Receipts(settings.SECRET_KEY).seal(receipt())))
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    tasks.settle_orphans()
    assert amounts(id) == (70, 0)


def test_old_leases_are_forgotten(redis_db: redis.Redis) -> None:
    lease("long gone", 90_000)
    lease("not long", 100)
    sweep(redis_db)
    assert [row.gateway_id for row in GatewayLease.objects.all()] == ["not long"]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("reason", ["the database was away", "this control has just begun to lead"])
def test_the_sweep_waits_for_bills_that_come_late(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """A gateway that was restarted while the database was away writes the bills of the one before
    when it is back: what they are charged to must still be reserved."""
    clock = Clock()
    id = hold()
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    control = Leadership(lambda: redis_db, clock=clock)
    monkeypatch.setattr(tasks, "sweep_pause", SweepPause(control, clock=clock))
    if reason == "the database was away":

        def away(**_: object) -> int:
            raise OperationalError("the server is gone")

        with monkeypatch.context() as patch:
            patch.setattr(settlement, "usage_reports_settle", away)
            tasks.settle_orphans()
    else:
        assert control.leads()
    assert amounts(id) == (0, 300), "not in the very tick either"
    clock.now_s += SWEEP_GRACE_S - 1
    tasks.settle_orphans()
    assert amounts(id) == (0, 300)
    clock.now_s += 1
    tasks.settle_orphans()
    assert amounts(id) == (0, 0)
