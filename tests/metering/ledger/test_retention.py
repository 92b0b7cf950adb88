"""Old ledger entries go, hourly sums stay."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from django.conf import settings

from helexa_site.config import read_config
from inference.settings.setting import SettingError
from metering import tasks
from metering.ledger import retention, store
from metering.models import LedgerEntry, UsageHour
from tests.metering.operations import settle as an_entry

pytestmark = pytest.mark.django_db(transaction=True)
DAY_S = 86_400


def ended(days_ago: float, count: int = 1) -> None:
    ended_unix_s = time.time() - days_ago * DAY_S
    store.apply(
        [
            an_entry(f"{days_ago}-{number}", budgets=(), ended_unix_s=ended_unix_s)
            for number in range(count)
        ]
    )


def keep(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    config = replace(settings.CONFIG, ledger_retention_days=days)
    monkeypatch.setattr(settings, "CONFIG", config)


def test_old_entries_go_and_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for days_ago in (0, 399, 401, 1000):
        ended(days_ago)
    keep(monkeypatch, 400)
    tasks.forget_ledger_entries()
    assert {entry.request_id for entry in LedgerEntry.objects.all()} == {"0-0", "399-0"}
    assert sum(hour.requests for hour in UsageHour.objects.all()) == 4


def test_zero_keeps_them_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ended(10_000)
    keep(monkeypatch, 0)
    tasks.forget_ledger_entries()
    assert LedgerEntry.objects.count() == 1


def test_a_call_continues_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ENTRIES_PER_BATCH", 2)
    monkeypatch.setattr(retention, "MAX_BATCHES", 2)
    ended(500, count=7)
    keep(monkeypatch, 400)
    tasks.forget_ledger_entries()
    assert LedgerEntry.objects.count() == 3
    tasks.forget_ledger_entries()
    assert LedgerEntry.objects.count() == 0


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "HELEXA_LEDGER_RETENTION_DAYS"
    for word, days in ((None, 400), ("0", 0), ("30", 30)):
        monkeypatch.delenv(name, raising=False) if word is None else monkeypatch.setenv(name, word)
        assert read_config().ledger_retention_days == days
    monkeypatch.setenv(name, "-1")
    with pytest.raises(SettingError):
        read_config()
