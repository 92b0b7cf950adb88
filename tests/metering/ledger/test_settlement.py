"""Gateways that died: their requests are settled once by what neurons report, within receipts."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import OperationalError

from fleet.live import reading as live
from inference.protocol.keys import gateway_alive_key, usage_key
from metering import tasks
from metering.ledger import store
from metering.ledger.receipts import Receipts
from metering.models import LedgerEntry, Reservation, UsageHour
from tests.metering.operations import settle
from tests.metering.reported_usage import (
    RECEIPTS,
    amounts,
    hold,
    publish,
    receipt,
    report,
    settle_all,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_report_settles_its_request_at_the_receipts_prices(redis_db: redis.Redis) -> None:
    id = hold()
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)
    entry = LedgerEntry.objects.get()
    assert (entry.request_id, entry.cost_micro_usd) == ("r1", 100)
    assert (entry.duration_ms, entry.time_to_first_token_ms) == (2000, 250)
    assert (entry.outcome, entry.neuron, entry.account) == ("cancelled", "beast", "lab")
    assert (entry.client, entry.endpoint) == ("curl", "/v1/chat/completions")
    assert not Reservation.objects.exists()
    assert redis_db.xlen(usage_key("beast")) == 0


def test_what_is_settled_already_is_not_charged_again(redis_db: redis.Redis) -> None:
    id = hold()
    store.apply([settle(budgets=(id,), completion_tokens=10)])
    publish(redis_db, report(), report())
    assert settle_all(redis_db) == 2
    assert amounts(id) == (50, 0)
    assert UsageHour.objects.get().requests == 1


def test_a_reservation_of_a_settled_request_is_released(redis_db: redis.Redis) -> None:
    """Its entry was written when nothing was held, as by a gateway that had no answer in time."""
    id = hold()
    store.apply([settle(budgets=())])
    publish(redis_db, report())
    settle_all(redis_db)
    assert amounts(id) == (0, 0)
    assert not Reservation.objects.exists()


def test_a_gateway_that_lives_settles_its_own_requests(redis_db: redis.Redis) -> None:
    id = hold()
    redis_db.set(gateway_alive_key("g1"), b"1")
    publish(redis_db, report())
    assert settle_all(redis_db) == 0
    assert amounts(id) == (0, 300)
    assert redis_db.xlen(usage_key("beast")) == 0
    assert not LedgerEntry.objects.exists()


def test_reports_wait_for_the_database(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = hold()
    publish(redis_db, report(sealed=Receipts(settings.SECRET_KEY).seal(receipt())))
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)

    def away(*_: object, **__: object) -> None:
        raise OperationalError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", away)
        tasks.settle_orphans()
    assert redis_db.xlen(usage_key("beast")) == 1
    tasks.settle_orphans()
    assert redis_db.xlen(usage_key("beast")) == 0
    assert amounts(id) == (70, 0)


def test_a_control_that_dies_before_it_deletes_charges_once(redis_db: redis.Redis) -> None:
    id = hold()
    publish(redis_db, report())
    entries: Any = redis_db.xrange(usage_key("beast"))
    settle_all(redis_db)
    for _, fields in entries:
        redis_db.xadd(usage_key("beast"), fields)
    settle_all(redis_db)
    assert amounts(id) == (70, 0)


def test_many_reports(redis_db: redis.Redis) -> None:
    publish(redis_db, *(report(f"r{number}") for number in range(450)))
    assert settle_all(redis_db) == 450
    assert LedgerEntry.objects.count() == 450
    assert UsageHour.objects.get().requests == 450


def test_a_receipt_opens_as_it_was_sealed() -> None:
    assert RECEIPTS.open(RECEIPTS.seal(receipt()), neuron="beast") == receipt()
