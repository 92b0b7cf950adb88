"""Ledger entries and request records go by their age, and records by their number."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from metering import request_records, tasks
from metering.ledger import store
from metering.models import CapturedRequest, LedgerEntry, RequestRecord, UsageHour
from tests.metering.operations import settle
from tests.metering.request_records.records import ended

pytestmark = pytest.mark.django_db(transaction=True)
DAY_S = 86_400


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PAUSE_S", 0.0)


def keep(monkeypatch: pytest.MonkeyPatch, *, days: int, records: int = 0) -> None:
    config = replace(
        settings.CONFIG,
        ledger_retention_days=days,
        request_retention_days=days,
        max_request_records=records,
    )
    monkeypatch.setattr(settings, "CONFIG", config)


def bill(*days_ago: float) -> None:
    for number, days in enumerate(days_ago):
        ended_unix_s = time.time() - days * DAY_S
        store.apply([settle(f"{days}-{number}", budgets=(), ended_unix_s=ended_unix_s)])


def record(*days_ago: float) -> None:
    now_unix_s = time.time()
    request_records.insert([ended(ended_unix_s=now_unix_s - days * DAY_S) for days in days_ago])


def ages() -> list[int]:
    now_unix_s = time.time()
    rows = RequestRecord.objects.order_by("at")
    return [round((now_unix_s - row.at.timestamp()) / DAY_S) for row in rows]


def entries() -> list[str]:
    return [one.request_id.partition("-")[0] for one in LedgerEntry.objects.order_by("at")]


def test_old_entries_go_and_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    bill(0, 399, 401, 1000)
    keep(monkeypatch, days=400)
    tasks.forget_ledger_entries()
    assert entries() == ["399", "0"]
    assert sum(hour.requests for hour in UsageHour.objects.all()) == 4
    keep(monkeypatch, days=0)
    tasks.forget_ledger_entries()
    assert entries() == ["399", "0"], "zero keeps all"


def test_old_records_go_and_those_over_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for made, days, max_rows, kept in (
        ([1, 29, 31, 400], 30, 0, [29, 1]),
        ([4, 3, 2, 1], 0, 3, [3, 2, 1]),
        ([40, 3, 2, 1], 30, 2, [2, 1]),
        ([10_000], 0, 0, [10_000]),
    ):
        RequestRecord.objects.all().delete()
        record(*made)
        keep(monkeypatch, days=days, records=max_rows)
        tasks.forget_request_records()
        assert ages() == kept


def test_a_call_continues_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ROWS_PER_BATCH", dict.fromkeys(tasks.ROWS_PER_BATCH, 2))
    monkeypatch.setattr(tasks, "MAX_BATCHES", 2)
    record(*[40] * 7)
    bill(*[40] * 7)
    keep(monkeypatch, days=30)
    for num_left in (3, 0):
        tasks.forget_request_records()
        tasks.forget_ledger_entries()
        assert (len(ages()), len(entries())) == (num_left, num_left)


def test_nothing_is_locked_between_two_short_batches() -> None:
    record(*[40] * 1_200)
    seen: list[tuple[int, bool]] = []
    num_forgotten = tasks.rows_forget(
        RequestRecord,
        before=timezone.now() - timedelta(days=30),
        pause=lambda _: seen.append((RequestRecord.objects.count(), connection.in_atomic_block)),
    )
    assert (num_forgotten, seen) == (1_200, [(700, False), (200, False)])
    assert tasks.ROWS_PER_BATCH[CapturedRequest] == 10, "those are large"
