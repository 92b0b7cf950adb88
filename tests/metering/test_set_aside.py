"""Rows of what cannot be settled, added by several controls at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from metering.models import SetAsideReport
from metering.set_aside import report_set_aside

NUM_THREADS, NUM_EACH = 8, 6
ROOM = 11


def test_rows_hold_their_bound_and_count_every_report(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metering.set_aside.MAX_SET_ASIDE_PER_NEURON", ROOM)

    def work(thread: int) -> None:
        try:
            for number in range(NUM_EACH):
                report_set_aside("beast", f"report {thread}.{number}", using)
        finally:
            connections[using].close()

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        list(threads.map(work, range(NUM_THREADS)))
    rows = SetAsideReport.objects.using(using).filter(neuron="beast")
    assert rows.count() == ROOM
    num_more = sum(rows.values_list("num_more", flat=True))
    assert num_more == NUM_THREADS * NUM_EACH - ROOM
