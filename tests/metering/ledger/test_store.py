"""Batches on each database: a bill and its record are written together or not at all; what no bill
releases is swept; entries and records go by their age, and records by their number; and how
PostgreSQL finds them."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import DataError, OperationalError, connection, connections
from django.utils import timezone

from helexa_site.celery import EVERY_S, TASK_SWEEP_ORPHANS
from metering import request_records, selectors, sql, tasks
from metering.errors import QuotaExceededError
from metering.ledger import store
from metering.ledger.book import Unit
from metering.ledger.entries import Granted, Outcome, RecordFields, Settle
from metering.ledger.pending_writes import LEASE_RENEWAL_S, LEASE_S, PendingWrite, PendingWrites
from metering.ledger.store import MAX_INT64, reservations_sweep
from metering.ledger.writer import LedgerWriter
from metering.models import (
    Budget,
    CapturedRequest,
    GatewayLease,
    LedgerEntry,
    RequestRecord,
    Reservation,
    SeriesRow,
    UsageHour,
)
from metering.money import DearestPrices, Metered, Prices
from metering.request_filters import RequestFilter, matching
from metering.request_records import RecordQueue
from tests.metering.databases import LONG_S, amounts, write_all
from tests.metering.operations import book, make_budget, reserve, settle, state
from tests.metering.request_records.records import ended, insert


def test_of_many_at_once_exactly_what_fits_is_granted(using: str) -> None:
    """2,000 requests of two gateways, room for 200."""
    room, wide = make_budget(using, cap=200 * 7), make_budget(using, cap=10**12)
    writers = [LedgerWriter(f"g{number}", using=using) for number in range(2)]

    async def ask(number: int) -> str | None:
        request = reserve(
            f"r{number}", budgets=(room, wide), prompt_tokens=5, output_tokens=2, gateway_id="g"
        )
        try:
            await writers[number % 2].reserve(request)
        except QuotaExceededError:
            return None
        return request.request_id

    async def scenario() -> list[str]:
        for writer in writers:
            writer.start()
        asked = await asyncio.gather(*(ask(number) for number in range(2_000)))
        granted = [id for id in asked if id is not None]
        for number, id in enumerate(granted):
            entry = settle(
                id, budgets=(room, wide), prompt_tokens=4, completion_tokens=2, reasoning_tokens=0
            )
            writers[number % 2].settle(entry)
            writers[1 - number % 2].settle(entry)
        for writer in writers:
            writer.close(LONG_S)
        return granted

    granted = asyncio.run(scenario())
    assert len(granted) == 200
    assert not Reservation.objects.using(using).exists()
    for budget_id in (room, wide):
        budget = Budget.objects.using(using).get(id=budget_id)
        assert (budget.spent, budget.reserved) == (200 * 6, 0)
    assert LedgerEntry.objects.using(using).count() == 200
    assert sum(hour.requests for hour in UsageHour.objects.using(using).all()) == 200


TOLD = RecordFields(status=200, kind=Outcome.ANSWERED, model_asked="gpt-4o", end_user="ann")


def billed(**changes: object) -> Settle:
    return settle(uuid.uuid4().hex, budgets=(), record=TOLD, **changes)


def test_bills_then_their_records_are_written_once_and_alike(
    using: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[str] = []
    refused = billed()

    def write(batch: list[request_records.Ended], *, using: str) -> None:
        if (refused, None) in batch:
            raise DataError("no")
        request_records.insert(batch, using=using)

    records = RecordQueue(using=using, insert=write)
    pending = PendingWrites("g1", using=using, records=records, notify=lambda _: None)

    def add(*settles: Settle) -> None:
        for one in settles:
            done = partial(written.append, one.request_id)
            pending.add(PendingWrite(one, time.monotonic(), on_written=done))

    def away(*_: object, **__: object) -> None:
        raise OperationalError("the server is gone")

    first, other, there = billed(completion_tokens=7), billed(), billed()
    with monkeypatch.context() as patch, pytest.raises(OperationalError):
        patch.setattr(request_records, "figures_add", away)
        add(first)
        write_all(pending)
    assert LedgerEntry.objects.using(using).exists() and written == []
    assert not RequestRecord.objects.using(using).exists()
    insert(ended(there.request_id), ended(is_billed=True), using=using)
    again = settle(first.request_id, budgets=(), completion_tokens=1, record=TOLD)
    add(settle("without", budgets=()), there, again, other)
    write_all(pending)
    assert LedgerEntry.objects.using(using).count() == 4
    assert RequestRecord.objects.using(using).count() == 3, "the billed one's comes with its bill"
    ids = (first.request_id, first.request_id, "without", there.request_id, other.request_id)
    assert sorted(written) == sorted(ids)
    record = RequestRecord.objects.using(using).get(request_id=uuid.UUID(first.request_id))
    entry = LedgerEntry.objects.using(using).get(request_id=first.request_id)
    assert record.completion_tokens == entry.completion_tokens == 7
    assert (record.end_user, record.outcome, entry.outcome) == ("ann", "answered", "finished")
    assert SeriesRow.objects.using(using).exists()
    last = billed()
    add(refused, last)
    write_all(pending)
    assert LedgerEntry.objects.using(using).count() == 6
    assert RequestRecord.objects.using(using).filter(request_id=uuid.UUID(last.request_id)).exists()
    assert f"request {refused.request_id} cannot be recorded" in caplog.text


NONE = {"prompt_tokens": 0, "output_tokens": 0, "default_output_tokens": 0}
NOTHING = dict.fromkeys(
    ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"), 0
)
MOST = Metered(unit="second", num_units=80, micro_usd=161)
USED = Metered(unit="second", num_units=5, micro_usd=11)


def test_money_is_reserved_and_charged_and_tokens_are_not(using: str) -> None:
    money, tokens = state(id=1, cap=200, unit=Unit.MICRO_USD), state(id=2, cap=0)
    both = book(money, tokens)
    both.reserve(reserve(budgets=(1, 2), metered=MOST, **NONE))
    assert (money.reserved, tokens.reserved) == (161, 0)
    with pytest.raises(QuotaExceededError, match=r"at most 80 seconds\).*\$0.000039 are left"):
        both.reserve(reserve("r2", budgets=(1, 2), metered=MOST, **NONE))
    assert not both.settle(settle(budgets=(1, 2), metered=USED, **NOTHING))
    assert (money.spent, money.reserved, tokens.spent) == (11, 0, 0)
    both.reserve(reserve(budgets=(1,), metered=USED, **NONE))
    assert both.settle(settle(budgets=(1,), metered=MOST, **NOTHING)), "no more than was reserved"
    assert money.spent == 22
    store.apply([settle(budgets=(), metered=USED, **NOTHING)], using=using)
    entry = LedgerEntry.objects.using(using).get()
    assert (entry.unit, entry.num_units, entry.cost_micro_usd) == ("second", 5, 11)
    assert UsageHour.objects.using(using).get().cost_micro_usd == 11
    # The dearest price is reserved, and the one that served is charged.
    id = make_budget(using, unit=Unit.MICRO_USD, cap=1_000)
    own, cloud = Prices(input_micro_usd=10**6), Prices(input_micro_usd=6 * 10**6)
    wanted = {"budgets": (id,), "output_tokens": 0, "prices": DearestPrices((own, cloud))}
    first, second = (reserve(name, **wanted) for name in ("r1", "r2"))
    granted, refused = store.apply([first, second], using=using)
    assert isinstance(granted, Granted) and isinstance(refused, QuotaExceededError)
    assert (refused.needed, refused.left) == (600, 400)
    LedgerEntry.objects.using(using).all().delete()
    used = settle("r1", budgets=(id,), prices=own, **{**NOTHING, "prompt_tokens": 90})
    store.apply([used], using=using)
    assert LedgerEntry.objects.using(using).get().cost_micro_usd == 90
    assert Budget.objects.using(using).get(id=id).spent == 90
    (granted,) = store.apply([second], using=using)
    assert isinstance(granted, Granted)


def add_hours(using: str) -> None:
    at = datetime(2026, 1, 1, 5, tzinfo=UTC)
    for number, amount in enumerate((MAX_INT64, 1, MAX_INT64, MAX_INT64 - 5)):
        whose = {"account": f"a{number % 2}", "model": f"m{number}", "cost_micro_usd": amount}
        UsageHour.objects.using(using).create(hour=at, **whose)


def test_words_and_numbers_that_no_column_holds_and_sums_past_64_bits(using: str) -> None:
    """No database refuses a batch again and again, and what is added up stays exact."""
    for number in range(3):
        bill = settle(f"r{number}", budgets=(), prompt_tokens=MAX_INT64, cached_tokens=0)
        store.apply([bill], using=using)
    hour = UsageHour.objects.using(using).get()
    assert (hour.requests, hour.prompt_tokens, hour.completion_tokens) == (3, MAX_INT64, 90)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT prompt_tokens FROM metering_usagehour")
        assert isinstance(cursor.fetchone()[0], int)
    UsageHour.objects.using(using).all().delete()
    LedgerEntry.objects.using(using).all().delete()
    words = {"model": "m" * 300, "neuron": "a\0b", "prompt_tokens": 2**70, "cached_tokens": -1}
    store.apply([settle(budgets=(), time_to_first_token_ms=2**40, **words)], using=using)
    entry = LedgerEntry.objects.using(using).get()
    assert (entry.model, entry.neuron, entry.cached_tokens) == ("m" * 100, "ab", 0)
    assert (entry.prompt_tokens, entry.time_to_first_token_ms) == (MAX_INT64, 2**31 - 1)
    UsageHour.objects.using(using).all().delete()
    add_hours(using)
    sums = selectors.exact_sums(["cost_micro_usd", "requests"])
    found = UsageHour.objects.using(using).aggregate(**sums)
    assert selectors.exact_sum(found, "cost_micro_usd") == 3 * MAX_INT64 - 4
    assert selectors.exact_sum(found, "requests") == 0


@pytest.mark.django_db
def test_usage_past_64_bits() -> None:
    add_hours("default")
    period = selectors.UsagePeriod(first=date(2026, 1, 1), last=date(2026, 1, 2))
    shown = selectors.usage_list(
        by=selectors.UsageGroup.ACCOUNT, period=period, where=selectors.UsageFilter()
    )
    sums_of = {row.name: row.sums.cost_micro_usd for row in shown}
    assert sums_of == {"a0": 2 * MAX_INT64, "a1": MAX_INT64 - 4}
    assert (
        selectors.usage_total(period=period, where=selectors.UsageFilter()).cost_micro_usd
        == 3 * MAX_INT64 - 4
    )


def hold(request_id: str = "r1", **changes: Any) -> int:
    """A budget with a reservation of 300 tokens on it."""
    id = make_budget("default")
    store.apply([reserve(request_id, budgets=(id,), **changes)])
    assert amounts("default", id) == (0, 300)
    return id


@pytest.mark.django_db(transaction=True)
def test_the_second_sweep_without_a_lease_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEASE_S + 2 * EVERY_S[TASK_SWEEP_ORPHANS] <= 30, "as documented"
    assert LEASE_RENEWAL_S * 3 < LEASE_S, "a renewal or two may be late"
    leased, dead = hold("r1", gateway_id="g1"), hold("r2", gateway_id="g2")
    monkeypatch.setattr(tasks, "_suspects", frozenset())
    without_a_lease = hold("r3", gateway_id="g3")
    for gateway_id, left_s in (("g1", 60), ("g2", -2), ("long gone", -90_000)):
        until_s = int(time.time() + left_s)
        GatewayLease.objects.create(gateway_id=gateway_id, lease_until_unix_s=until_s)
    tasks.sweep_orphans()
    assert amounts("default", dead) == amounts("default", without_a_lease) == (0, 300)
    late = hold("r4", gateway_id="g4")
    tasks.sweep_orphans()
    assert amounts("default", leased) == amounts("default", late) == (0, 300)
    assert amounts("default", dead) == amounts("default", without_a_lease) == (0, 0)
    assert not LedgerEntry.objects.exists()
    assert {row.gateway_id for row in GatewayLease.objects.all()} == {"g1", "g2"}
    until_s = GatewayLease.objects.get(gateway_id="g1").lease_until_unix_s
    for now_s, is_dead in ((until_s, False), (until_s + 1, True)):
        dead_now = reservations_sweep(now_unix_s=now_s, suspects=frozenset())
        assert ("g1" in dead_now) is is_dead
    # A gateway that was restarted while the database was away writes the bills of the one before
    # when it is back. One that comes later still charges what is left.
    monkeypatch.setattr(tasks, "_suspects", frozenset())
    GatewayLease.objects.all().delete()
    id = hold("r5")
    tasks.sweep_orphans()

    def away(**_: object) -> None:
        raise OperationalError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "reservations_sweep", away)
        tasks.sweep_orphans()
    tasks.sweep_orphans()
    assert amounts("default", id) == (0, 300), "the first one after the outage"
    tasks.sweep_orphans()
    assert amounts("default", id) == (0, 0)
    store.apply([reserve("r6", budgets=(id,), prompt_tokens=900, output_tokens=60)])
    store.apply([settle("r5", budgets=(id,), prompt_tokens=40, completion_tokens=30)])
    assert amounts("default", id) == (40, 960), "its cap of 1,000 holds"
    store.apply([settle("r5", budgets=(id,)), settle("r6", budgets=(id,))])
    assert amounts("default", id) == (110, 0)


DAY_S = 86_400


def bill(*days_ago: float) -> None:
    now_s = time.time()
    for number, days in enumerate(days_ago):
        ended_unix_s = now_s - days * DAY_S
        store.apply([settle(f"{days}-{number}", budgets=(), ended_unix_s=ended_unix_s)])


def record(*days_ago: float) -> None:
    now_s = time.time()
    insert(*(ended(ended_unix_s=now_s - days * DAY_S) for days in days_ago))


def kept(monkeypatch: pytest.MonkeyPatch, *, days: int, records: int = 0) -> tuple[Any, Any]:
    """The days of the entries and of the records, after both have forgotten once."""
    limits = {"ledger_retention_days": days, "request_retention_days": days}
    config = replace(settings.CONFIG, **limits, max_request_records=records)
    monkeypatch.setattr(settings, "CONFIG", config)
    tasks.forget_ledger_entries()
    tasks.forget_request_records()
    return tuple(
        [round((time.time() - row.at.timestamp()) / DAY_S) for row in rows.objects.order_by("at")]
        for rows in (LedgerEntry, RequestRecord)
    )


@pytest.mark.django_db(transaction=True)
def test_what_is_old_goes_and_records_over_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "PAUSE_S", 0.0)
    bill(0, 399, 401, 1000)
    assert kept(monkeypatch, days=400) == ([399, 0], [])
    assert sum(hour.requests for hour in UsageHour.objects.all()) == 4, "sums stay"
    assert kept(monkeypatch, days=0) == ([399, 0], []), "zero keeps all"
    for made, days, max_rows, left in (
        ([1, 29, 31, 400], 30, 0, [29, 1]),
        ([4, 3, 2, 1], 0, 3, [3, 2, 1]),
        ([40, 3, 2, 1], 30, 2, [2, 1]),
        ([10_000], 0, 0, [10_000]),
    ):
        RequestRecord.objects.all().delete()
        record(*made)
        assert kept(monkeypatch, days=days, records=max_rows)[1] == left
    LedgerEntry.objects.all().delete()
    RequestRecord.objects.all().delete()
    record(*[40] * 7)
    bill(*[41] * 7)
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "ROWS_PER_BATCH", dict.fromkeys(tasks.ROWS_PER_BATCH, 2))
        patch.setattr(sql, "MAX_BATCHES", 2)
        for num_left in (3, 0):  # a call continues where the last one stopped
            assert kept(monkeypatch, days=30) == ([41] * num_left, [40] * num_left)
    record(*[40] * 1_200)  # nothing is locked between two short batches
    seen: list[tuple[int, bool]] = []

    def pause(_: float) -> None:
        seen.append((RequestRecord.objects.count(), connection.in_atomic_block))

    monkeypatch.setattr("time.sleep", pause)
    before = timezone.now() - timedelta(days=30)
    assert tasks.rows_forget(RequestRecord, before=before) == 1_200
    assert seen == [(700, False), (200, False), (0, False)]
    assert tasks.ROWS_PER_BATCH[CapturedRequest] == 10, "those are large"


def test_names_that_never_meet_are_compared_within_an_index(using: str) -> None:
    """Two names that never meet must not cost a walk over all rows."""
    if connections[using].vendor != "postgresql":
        pytest.skip("that is asked of PostgreSQL")
    names = (name for name in request_records.COLUMNS if name not in ("request_id", "at"))
    columns = ", ".join(f'"{name}"' for name in names)
    for account, model, neuron in map(str.split, ("a x one", "a x two", "b y two", "b x two")):
        changes = {"account": account, "model": model, "neuron": neuron}
        insert(ended(ended_unix_s=time.time(), **changes), using=using)
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {request_records.TABLE} (request_id, at, {columns}) "
            f"SELECT gen_random_uuid(), at - number * interval '1 minute', {columns} "
            f"FROM {request_records.TABLE}, generate_series(1, 5000) AS number"
        )
        cursor.execute("ANALYZE")
    for where in (
        RequestFilter(account="a", model="y"),
        RequestFilter(model="y", neuron="one"),
        RequestFilter(account="b", neuron="one"),
        RequestFilter(accounts=frozenset({"b"}), model="x", neuron="one"),
        RequestFilter(accounts=frozenset({"a", "c"}), model="y"),
    ):
        found = matching(where).using(using).order_by("-at", "-pk")[:51]
        plan = found.explain(analyze=True)
        assert "Index Cond" in plan and "Rows Removed by Filter" not in plan, plan
        assert list(found) == []
