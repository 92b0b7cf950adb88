"""Gateways that died: what no bill releases is swept."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.db import OperationalError

from fleet.control.leadership import Leadership
from helexa_site.celery import EVERY_S, TASK_SWEEP_ORPHANS
from metering import tasks
from metering.ledger import store
from metering.ledger.orphans import PAUSE_S, SWEEP_GRACE_S, SweepPause, reservations_sweep
from metering.ledger.pending_writes import LEASE_RENEWAL_S, LEASE_S
from metering.models import Budget, GatewayLease, LedgerEntry
from tests.cases import each_case
from tests.metering.keys.directory_support import Clock
from tests.metering.operations import make_budget, reserve, settle

pytestmark = pytest.mark.django_db(transaction=True)


NOW_UNIX_S = 1_800_014_400.0


def amounts(budget_id: int) -> tuple[int, int]:
    """The spent and the reserved amount."""
    budget = Budget.objects.get(id=budget_id)
    return budget.spent, budget.reserved


def hold(request_id: str = "r1", **changes: Any) -> int:
    """A budget with a reservation of 300 tokens on it."""
    id = make_budget("default")
    store.apply([reserve(request_id, budgets=(id,), **changes)])
    assert amounts(id) == (0, 300)
    return id


def lease(gateway_id: str, ago_s: float) -> None:
    until_s = int(NOW_UNIX_S - ago_s)
    GatewayLease.objects.create(gateway_id=gateway_id, lease_until_unix_s=until_s)


def test_a_lease_protects_a_reservation() -> None:
    leased, dead = hold("r1", gateway_id="g1"), hold("r2", gateway_id="g2")
    without_a_lease = hold("r3", gateway_id="g3")
    lease("g1", SWEEP_GRACE_S)
    lease("g2", SWEEP_GRACE_S + 1)
    lease("long gone", 90_000)
    assert reservations_sweep(now_unix_s=NOW_UNIX_S) == 2
    assert amounts(leased) == (0, 300)
    assert amounts(dead) == amounts(without_a_lease) == (0, 0)
    assert not LedgerEntry.objects.exists()
    assert {row.gateway_id for row in GatewayLease.objects.all()} == {"g1", "g2"}


def test_nothing_stays_reserved_for_more_than_half_a_minute() -> None:
    sweep_every_s = EVERY_S[TASK_SWEEP_ORPHANS]
    assert LEASE_S + SWEEP_GRACE_S + sweep_every_s <= 30
    assert PAUSE_S + sweep_every_s <= 30
    assert LEASE_RENEWAL_S * 3 < LEASE_S, "a renewal or two may be late"


def test_a_bill_after_the_sweep_charges_what_is_left() -> None:
    id = hold()
    assert reservations_sweep(now_unix_s=NOW_UNIX_S) == 1
    store.apply([reserve("r2", budgets=(id,), prompt_tokens=900, output_tokens=60)])
    store.apply([settle("r1", budgets=(id,), prompt_tokens=40, completion_tokens=30)])
    assert amounts(id) == (40, 960), "its cap of 1,000 holds"
    store.apply([settle("r1", budgets=(id,)), settle("r2", budgets=(id,))])
    assert amounts(id) == (110, 0)


@each_case("reason", ["the database was away", "this control has just begun to lead"])
def test_the_sweep_waits_for_bills_that_come_late(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, clock: Clock, reason: str
) -> None:
    """A gateway that was restarted while the database was away writes the bills of the one before
    when it is back: what they are charged to must still be reserved."""
    redis_db.flushall()
    id = hold(reason)
    control = Leadership(lambda: redis_db, clock=clock)
    monkeypatch.setattr(tasks, "sweep_pause", SweepPause(control, clock=clock))
    if reason == "the database was away":

        def away(**_: object) -> int:
            raise OperationalError("the server is gone")

        with monkeypatch.context() as patch:
            patch.setattr(tasks, "reservations_sweep", away)
            tasks.sweep_orphans()
    else:
        assert control.leads()
    assert amounts(id) == (0, 300), "not in the very tick either"
    clock.now_s += PAUSE_S - 1
    tasks.sweep_orphans()
    assert amounts(id) == (0, 300)
    clock.now_s += 1
    tasks.sweep_orphans()
    assert amounts(id) == (0, 0)
