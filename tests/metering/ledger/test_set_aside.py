"""Rows of what cannot be settled, added by several controls at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connections

from inference.quotas import quota_locked
from metering.ledger.set_aside import UnfitReport, reports_set_aside
from metering.models import SetAsideReport

NUM_THREADS, NUM_EACH = 8, 6
ROOM = 11


def test_rows_hold_their_bound_and_count_every_report(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metering.ledger.set_aside.MAX_SET_ASIDE_PER_NEURON", ROOM)

    def work(thread: int) -> None:
        try:
            for number in range(NUM_EACH):
                report = UnfitReport(f"report {thread}.{number}")
                reports_set_aside("beast", [report], using)
        finally:
            connections[using].close()

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        list(threads.map(work, range(NUM_THREADS)))
    rows = SetAsideReport.objects.using(using).filter(neuron="beast")
    assert rows.count() == ROOM
    num_more = sum(rows.values_list("num_more", flat=True))
    assert num_more == NUM_THREADS * NUM_EACH - ROOM


def test_a_batch_is_one_transaction(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metering.ledger.set_aside.MAX_SET_ASIDE_PER_NEURON", ROOM)
    begun: list[str] = []

    @contextmanager
    def counted(kind: str, owner: str, using: str) -> Iterator[None]:
        begun.append(owner)
        with quota_locked(kind, owner, using):
            yield

    monkeypatch.setattr("metering.ledger.set_aside.quota_locked", counted)
    reports_set_aside("beast", [UnfitReport(str(number)) for number in range(50)], using)
    rows = SetAsideReport.objects.using(using).filter(neuron="beast").order_by("id")
    assert [(row.reason, row.num_more) for row in rows] == [
        *((str(number), 0) for number in range(ROOM - 1)),
        (str(ROOM - 1), 50 - ROOM),
    ]
    assert begun == ["beast"]
