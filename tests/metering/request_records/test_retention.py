"""Request records go by their age and by their number."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from metering import tasks
from metering.models import CapturedRequest, RequestRecord, Revision
from metering.request_records import retention, rows
from tests.metering.request_records.records import ended

pytestmark = pytest.mark.django_db(transaction=True)
DAY_S = 86_400


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAUSE_S", 0.0)


def keep(monkeypatch: pytest.MonkeyPatch, *, days: int, records: int) -> None:
    config = replace(settings.CONFIG, request_retention_days=days, max_request_records=records)
    monkeypatch.setattr(settings, "CONFIG", config)


def record(*days_ago: float) -> None:
    now_unix_s = time.time()
    rows.insert([ended(ended_unix_s=now_unix_s - days * DAY_S) for days in days_ago])


def ages() -> list[int]:
    now_unix_s = time.time()
    rows = RequestRecord.objects.order_by("at")
    return [round((now_unix_s - row.at.timestamp()) / DAY_S) for row in rows]


def test_old_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    record(1, 29, 31, 400)
    keep(monkeypatch, days=30, records=0)
    tasks.forget_request_records()
    assert ages() == [29, 1]


def test_those_over_the_most_go_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    record(4, 3, 2, 1)
    keep(monkeypatch, days=0, records=3)
    tasks.forget_request_records()
    assert ages() == [3, 2, 1]


def test_zero_keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    record(10_000)
    keep(monkeypatch, days=0, records=0)
    tasks.forget_request_records()
    assert ages() == [10_000]


def test_a_call_continues_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ROWS_PER_BATCH", 2)
    monkeypatch.setattr(retention, "MAX_BATCHES", 2)
    record(*[40] * 7)
    keep(monkeypatch, days=30, records=0)
    tasks.forget_request_records()
    assert len(ages()) == 3
    tasks.forget_request_records()
    assert ages() == []


def written_meanwhile(model: type[Model], counts: list[int]) -> Callable[[float], None]:
    """A pause in which another thread writes to the same database, as a tick does, and counts the
    rows left of ``model``. If the deletion held a transaction open meanwhile, SQLite would refuse
    the write and PostgreSQL would still count the deleted rows."""

    def tick() -> int:
        try:
            Revision.objects.update_or_create(pk=1)
            return model._default_manager.count()
        finally:
            connection.close()

    def pause(_: float) -> None:
        with ThreadPoolExecutor(1) as ticks:
            counts.append(ticks.submit(tick).result())

    return pause


def test_a_tick_waits_for_one_batch_at_most() -> None:
    """The batches are short, and between two of them nothing is locked."""
    record(*[40] * 1_200)
    counts: list[int] = []
    num_forgotten = retention.request_records_forget(
        before=timezone.now() - timedelta(days=30),
        max_rows=0,
        pause=written_meanwhile(RequestRecord, counts),
    )
    assert (num_forgotten, counts) == (1_200, [700, 200])


def test_a_tick_waits_for_a_few_captures_at_most() -> None:
    """A row of theirs holds bodies of up to a megabyte."""
    at = timezone.now() - timedelta(days=2)
    CapturedRequest.objects.bulk_create(
        CapturedRequest(request_id=uuid.uuid4(), at=at) for _ in range(25)
    )
    counts: list[int] = []
    num_forgotten = retention.captured_requests_forget(
        before=timezone.now() - timedelta(days=1), pause=written_meanwhile(CapturedRequest, counts)
    )
    assert (num_forgotten, counts) == (25, [15, 5])
