"""Sums that pass 64 bits, on each database."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from django.core.management import call_command
from django.db import connections

from metering.ledger import store
from metering.ledger.store import MAX_INT64
from metering.models import UsageHour
from metering.selectors import UsageFilter, UsageGroup, usage_list, usage_total
from metering.selectors.usage import UsagePeriod, exact_sum, exact_sums
from tests.metering.operations import settle

AT = datetime(2026, 1, 1, 5, tzinfo=UTC)
PERIOD = UsagePeriod(first=date(2026, 1, 1), last=date(2026, 1, 2))


def _add_hours(using: str, *amounts: int) -> None:
    for number, amount in enumerate(amounts):
        UsageHour.objects.using(using).create(
            hour=AT, account=f"a{number % 2}", model=f"m{number}", cost_micro_usd=amount
        )


def test_a_sum_past_64_bits_is_exact(using: str) -> None:
    _add_hours(using, MAX_INT64, MAX_INT64, MAX_INT64 - 5, 7, 0)
    found = UsageHour.objects.using(using).aggregate(**exact_sums(["cost_micro_usd", "requests"]))
    assert exact_sum(found, "cost_micro_usd") == 3 * MAX_INT64 + 2
    assert exact_sum(found, "requests") == 0


def test_an_hour_stays_an_integer(using: str) -> None:
    """The batch is written: no database refuses it again and again."""
    entries = [
        settle(f"r{number}", budgets=(), prompt_tokens=MAX_INT64, cached_tokens=0)
        for number in range(3)
    ]
    store.apply(entries[:2], using=using)
    store.apply(entries[2:], using=using)
    hour = UsageHour.objects.using(using).get()
    assert (hour.requests, hour.prompt_tokens) == (3, MAX_INT64)
    assert hour.completion_tokens == 90
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT prompt_tokens FROM metering_usagehour")
        assert isinstance(cursor.fetchone()[0], int)


@pytest.mark.django_db
class TestEnormousUsage:
    def test_rows_and_total(self) -> None:
        _add_hours("default", MAX_INT64, 1, MAX_INT64, MAX_INT64)
        rows = usage_list(by=UsageGroup.ACCOUNT, period=PERIOD, where=UsageFilter())
        assert [(row.name, row.sums.cost_micro_usd) for row in rows] == [
            ("a0", 2 * MAX_INT64),
            ("a1", MAX_INT64 + 1),
        ]
        total = usage_total(period=PERIOD, where=UsageFilter())
        assert total.cost_micro_usd == 3 * MAX_INT64 + 1

    def test_the_command_prints_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        _add_hours("default", MAX_INT64, 0, MAX_INT64)
        for arguments in (["--csv"], ["--json"], []):
            call_command(
                "usage", "--by", "account", "--from", "2026-01-01", "--to", "2026-01-02", *arguments
            )
        printed = capsys.readouterr().out
        assert str(2 * MAX_INT64) in printed
