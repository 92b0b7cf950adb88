"""Gateways that died: what no bill releases is swept."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import OperationalError

from helexa_site.celery import EVERY_S, TASK_SWEEP_ORPHANS
from metering import tasks
from metering.ledger import store
from metering.ledger.orphans import reservations_sweep
from metering.ledger.pending_writes import LEASE_RENEWAL_S, LEASE_S
from metering.models import GatewayLease, LedgerEntry
from tests.metering import writer_support
from tests.metering.operations import make_budget, reserve, settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _first_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_suspects", frozenset())


def amounts(budget_id: int) -> tuple[int, int]:
    return writer_support.amounts("default", budget_id)


def hold(request_id: str = "r1", **changes: Any) -> int:
    """A budget with a reservation of 300 tokens on it."""
    id = make_budget("default")
    store.apply([reserve(request_id, budgets=(id,), **changes)])
    assert amounts(id) == (0, 300)
    return id


def test_the_second_sweep_without_a_lease_releases() -> None:
    assert LEASE_S + 2 * EVERY_S[TASK_SWEEP_ORPHANS] <= 30, "as documented"
    assert LEASE_RENEWAL_S * 3 < LEASE_S, "a renewal or two may be late"
    leased, dead = hold("r1", gateway_id="g1"), hold("r2", gateway_id="g2")
    without_a_lease = hold("r3", gateway_id="g3")
    for gateway_id, left_s in (("g1", 60), ("g2", -2), ("long gone", -90_000)):
        until_s = int(time.time() + left_s)
        GatewayLease.objects.create(gateway_id=gateway_id, lease_until_unix_s=until_s)
    tasks.sweep_orphans()
    assert amounts(dead) == amounts(without_a_lease) == (0, 300)
    late = hold("r4", gateway_id="g4")
    tasks.sweep_orphans()
    assert amounts(leased) == amounts(late) == (0, 300)
    assert amounts(dead) == amounts(without_a_lease) == (0, 0)
    assert not LedgerEntry.objects.exists()
    assert {row.gateway_id for row in GatewayLease.objects.all()} == {"g1", "g2"}
    until_s = GatewayLease.objects.get(gateway_id="g1").lease_until_unix_s
    for now_s, is_dead in ((until_s, False), (until_s + 1, True)):
        dead_now = reservations_sweep(now_unix_s=now_s, suspects=frozenset())
        assert ("g1" in dead_now) is is_dead


def test_a_sweep_after_an_outage_and_a_bill_after_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway that was restarted while the database was away writes the bills of the one before
    when it is back. One that comes later still charges what is left."""
    id = hold()
    tasks.sweep_orphans()

    def away(**_: object) -> None:
        raise OperationalError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "reservations_sweep", away)
        tasks.sweep_orphans()
    tasks.sweep_orphans()
    assert amounts(id) == (0, 300), "the first one after the outage"
    tasks.sweep_orphans()
    assert amounts(id) == (0, 0)
    store.apply([reserve("r2", budgets=(id,), prompt_tokens=900, output_tokens=60)])
    store.apply([settle("r1", budgets=(id,), prompt_tokens=40, completion_tokens=30)])
    assert amounts(id) == (40, 960), "its cap of 1,000 holds"
    store.apply([settle("r1", budgets=(id,)), settle("r2", budgets=(id,))])
    assert amounts(id) == (110, 0)
