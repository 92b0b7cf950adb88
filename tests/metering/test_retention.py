"""Ledger entries and request records go by their age, and records by their number."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

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


def bill(*days_ago: float) -> None:
    now_s = time.time()
    for number, days in enumerate(days_ago):
        ended_unix_s = now_s - days * DAY_S
        store.apply([settle(f"{days}-{number}", budgets=(), ended_unix_s=ended_unix_s)])


def record(*days_ago: float) -> None:
    now_s = time.time()
    request_records.insert([ended(ended_unix_s=now_s - days * DAY_S) for days in days_ago])


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


def test_what_is_old_goes_and_records_over_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(tasks, "ROWS_PER_BATCH", dict.fromkeys(tasks.ROWS_PER_BATCH, 2))
    monkeypatch.setattr(tasks, "MAX_BATCHES", 2)
    record(*[40] * 7)
    bill(*[41] * 7)
    for num_left in (3, 0):  # a call continues where the last one stopped
        assert kept(monkeypatch, days=30) == ([41] * num_left, [40] * num_left)


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
