"""Gateways that died: their requests are settled once by what neurons report, within receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis
from django.conf import settings
from django.db import DataError, OperationalError

from fleet import live
from inference.protocol.events import Usage
from inference.protocol.keys import gateway_alive_key, usage_key
from inference.protocol.usage_reports import USAGE_REPORT_FIELD
from metering import store, tasks, usage_reports
from metering.models import LedgerEntry, Reservation, SetAsideReport, UsageHour
from metering.receipts import Receipts
from metering.set_aside import MAX_SET_ASIDE_PER_NEURON
from tests.metering.operations import settle
from tests.metering.reported_usage import (
    NOW_UNIX_S,
    RECEIPTS,
    amounts,
    hold,
    publish,
    receipt,
    report,
    settle_all,
)

pytestmark = pytest.mark.django_db(transaction=True)


def reasons() -> list[str]:
    return [row.reason for row in SetAsideReport.objects.order_by("id")]


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


def test_a_neuron_reports_its_own_requests_alone(redis_db: redis.Redis) -> None:
    """Whichever stream it comes by, and whatever stands in it."""
    id = hold()
    forged = Receipts("another fleet's").seal(receipt())
    publish(redis_db, report(), neuron="intruder")
    publish(redis_db, report(sealed=forged), report(sealed=b""))
    publish(redis_db, report(sealed=RECEIPTS.seal(receipt())[:-1] + b"x"))
    publish(redis_db, report(sealed=b"x" * 5000))
    assert settle_all(redis_db) == 0
    assert amounts(id) == (0, 300)
    assert not LedgerEntry.objects.exists()
    assert reasons() == [
        "its receipt is not a gateway's",
        "its receipt is not a gateway's",
        "its receipt is not a gateway's",
        "its receipt is too long",
        "its receipt is another neuron's",
    ]
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": 201},
        {"prompt_tokens": 2**63 - 1},
        {"prompt_tokens": 2**64 - 1},
        {"prompt_tokens": -1},
        {"completion_tokens": 101},
        {"completion_tokens": 2**62},
        {"completion_tokens": -(2**63)},
        {"cached_tokens": 41},
        {"cached_tokens": -1},
        {"reasoning_tokens": 31},
        {"reasoning_tokens": -1},
    ],
)
def test_more_than_its_receipt_allows_is_set_aside(
    redis_db: redis.Redis, changes: dict[str, int]
) -> None:
    """Nobody is charged; an operator sees the row; the next report is settled."""
    id = hold()
    usage = Usage(**{"prompt_tokens": 40, "completion_tokens": 30} | changes)
    publish(redis_db, report(usage=usage), report("r2"))
    assert settle_all(redis_db) == 1
    assert amounts(id) == (0, 300)
    assert [entry.request_id for entry in LedgerEntry.objects.all()] == ["r2"]
    row = SetAsideReport.objects.get()
    assert (row.neuron, row.request_id, row.account) == ("beast", "r1", "lab")
    assert "tokens" in row.reason


def junk(entry: dict[bytes, bytes]) -> Callable[[redis.Redis], object]:
    fields: dict[Any, Any] = dict(entry)
    return lambda client: client.xadd(usage_key("aaa"), fields)


HOSTILE: dict[str, Callable[[redis.Redis], object]] = {
    "no message": junk({USAGE_REPORT_FIELD: b"\xc1"}),
    "no field": junk({b"x": b"y"}),
    "a field of another type": junk(
        {USAGE_REPORT_FIELD: msgspec.msgpack.encode({"receipt": 7, "usage": None})}
    ),
    "a string": lambda client: client.set(usage_key("aaa"), b"x"),
    "a list": lambda client: client.lpush(usage_key("aaa"), b"x"),
    "a huge entry": lambda client: client.xadd(usage_key("aaa"), {b"r": b"x" * 40_000_000}),
    "the largest id": lambda client: client.xadd(
        usage_key("aaa"), {b"r": b"x"}, id=f"{2**64 - 1}-{2**64 - 1}"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_nobody_can_read_is_that_neurons_alone(redis_db: redis.Redis, name: str) -> None:
    HOSTILE[name](redis_db)
    redis_db.zadd("helexa:neurons", {"aaa": 1.0})
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert LedgerEntry.objects.get().request_id == "r1"
    assert len(reasons()) == 1 and SetAsideReport.objects.get().neuron == "aaa"
    assert settle_all(redis_db) == 0
    assert len(reasons()) == 1


def test_rows_set_aside_are_bounded(redis_db: redis.Redis) -> None:
    for _ in range(MAX_SET_ASIDE_PER_NEURON + 50):
        redis_db.xadd(usage_key("beast"), {b"x": b"y"})
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert len(reasons()) == MAX_SET_ASIDE_PER_NEURON
    assert SetAsideReport.objects.order_by("-id")[0].num_more == 50


def test_what_the_database_refuses_stops_no_other_report(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = store.apply

    def refusing(operations: Any, *, using: str) -> Any:
        if any(operation.request_id == "r1" for operation in operations):
            raise DataError("integer out of range")
        return apply(operations, using=using)

    monkeypatch.setattr(store, "apply", refusing)
    publish(redis_db, report("r0"), report("r1"), report("r2"))
    settle_all(redis_db)
    assert {entry.request_id for entry in LedgerEntry.objects.all()} == {"r0", "r2"}
    assert reasons() == ["the database refuses it: integer out of range"]
    assert redis_db.xlen(usage_key("beast")) == 0


@pytest.mark.parametrize("ended_unix_s", [NOW_UNIX_S * 2, -1.0, float("nan"), float("inf")])
def test_impossible_times(redis_db: redis.Redis, ended_unix_s: float) -> None:
    hold()
    publish(
        redis_db,
        report(
            ended_unix_s=ended_unix_s,
            started_unix_s=float("nan"),
            time_to_first_token_s=float("inf"),
        ),
    )
    settle_all(redis_db)
    entry = LedgerEntry.objects.get()
    assert entry.at.timestamp() == NOW_UNIX_S
    assert (entry.duration_ms, entry.time_to_first_token_ms) == (0, None)


def test_many_reports(redis_db: redis.Redis) -> None:
    publish(redis_db, *(report(f"r{number}") for number in range(450)))
    assert settle_all(redis_db) == 450
    assert LedgerEntry.objects.count() == 450
    assert UsageHour.objects.get().requests == 450


def test_one_that_writes_without_end_holds_up_no_other(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream was read until it was empty, before the next neuron's, and the sweep after it."""
    id = hold()
    monkeypatch.setattr(usage_reports, "REPORTS_PER_BATCH", 1)
    monkeypatch.setattr(usage_reports, "MAX_BATCHES", 20, raising=False)
    publish(redis_db, *[report(sealed=b"") for _ in range(50)], neuron="a-flood")
    publish(redis_db, report())
    assert settle_all(redis_db) == 1
    assert amounts(id) == (70, 0)
    assert redis_db.xlen(usage_key("a-flood")) == 30


def test_a_report_of_long_ago_is_not_settled_again(redis_db: redis.Redis) -> None:
    """Once the ledger had forgotten its entry, the same report charged the request anew."""
    hold()
    old = RECEIPTS.seal(receipt(sealed_unix_s=NOW_UNIX_S - 86_401))
    publish(redis_db, report(sealed=old))
    settled = usage_reports.usage_reports_settle(
        client=redis_db,
        receipts=RECEIPTS,
        now_unix_s=NOW_UNIX_S,
        oldest_unix_s=NOW_UNIX_S - 86_400,
    )
    assert settled == 0
    assert reasons() == ["its receipt is older than what the ledger keeps"]
    publish(redis_db, report(ended_unix_s=1.0))
    assert settle_all(redis_db) == 1
    assert LedgerEntry.objects.get().at.timestamp() == NOW_UNIX_S


def test_a_receipt_opens_as_it_was_sealed() -> None:
    assert RECEIPTS.open(RECEIPTS.seal(receipt()), neuron="beast") == receipt()
