"""Batches: a bill and its record are written together or not at all; two writers, one budget."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest
from django.db import OperationalError

from metering.errors import QuotaExceededError
from metering.ledger import store
from metering.ledger.entries import Outcome, RecordFields, Settle
from metering.ledger.writer import LedgerWriter
from metering.models import Budget, LedgerEntry, RequestRecord, Reservation, SeriesRow, UsageHour
from metering.request_records import rows
from tests.metering.operations import make_budget, reserve, settle
from tests.metering.request_records.records import ended

LONG_S = 300.0


def test_of_many_at_once_exactly_what_fits_is_granted(using: str) -> None:
    """10,000 requests, room for 1,000."""
    room, wide = make_budget(using, cap=1_000 * 7), make_budget(using, cap=10**12)
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
        asked = await asyncio.gather(*(ask(number) for number in range(10_000)))
        granted = [id for id in asked if id is not None]
        for number, id in enumerate(granted):
            entry = settle(
                id, budgets=(room, wide), prompt_tokens=4, completion_tokens=2, reasoning_tokens=0
            )
            writers[number % 2].settle(entry)
            writers[1 - number % 2].settle(entry)
        for writer in writers:
            await writer.stop(LONG_S)
        return granted

    granted = asyncio.run(scenario())
    assert len(granted) == 1_000
    assert not Reservation.objects.using(using).exists()
    for budget_id in (room, wide):
        budget = Budget.objects.using(using).get(id=budget_id)
        assert (budget.spent, budget.reserved) == (6_000, 0)
    assert LedgerEntry.objects.using(using).count() == 1_000
    assert sum(hour.requests for hour in UsageHour.objects.using(using).all()) == 1_000


TOLD = RecordFields(status=200, kind=Outcome.ANSWERED, model_asked="gpt-4o", end_user="ann")


def billed(**changes: object) -> Settle:
    return settle(uuid.uuid4().hex, budgets=(), record=TOLD, **changes)


def tokens_of(table: Callable[..., object], using: str) -> list[tuple[int, ...]]:
    rows = table.objects.using(using).order_by("pk")  # type: ignore[attr-defined]
    return list(rows.values_list("prompt_tokens", "completion_tokens", "cost_micro_usd"))


def test_the_record_has_what_is_billed(using: str) -> None:
    first, second = billed(completion_tokens=7), billed()
    store.apply([first, settle("without", budgets=()), second], using=using)
    assert RequestRecord.objects.using(using).count() == 2
    record = RequestRecord.objects.using(using).get(request_id=uuid.UUID(first.request_id))
    assert (record.completion_tokens, record.end_user, record.outcome) == (7, "ann", "answered")
    assert SeriesRow.objects.using(using).exists()


def test_who_settles_second_changes_neither(using: str) -> None:
    first = billed()
    store.apply([first], using=using)
    again = settle(first.request_id, budgets=(), completion_tokens=1, record=TOLD)
    store.apply([again, first], using=using)
    assert tokens_of(LedgerEntry, using) == tokens_of(RequestRecord, using)
    assert len(tokens_of(RequestRecord, using)) == 1


def test_a_record_that_is_there_already_holds_up_no_bill(using: str) -> None:
    first, other = billed(), billed()
    rows.insert([ended(first.request_id)], using=using)
    store.apply([first, other], using=using)
    assert LedgerEntry.objects.using(using).count() == 2
    assert RequestRecord.objects.using(using).count() == 2


def test_without_its_record_nothing_is_billed(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("the server is gone")

    monkeypatch.setattr(rows, "figures_add", away)
    with pytest.raises(OperationalError):
        store.apply([billed()], using=using)
    assert not LedgerEntry.objects.using(using).exists()
    assert not RequestRecord.objects.using(using).exists()


def test_of_a_billed_request_the_other_writer_stores_no_record(using: str) -> None:
    rows.insert([ended(is_billed=True), ended()], using=using)
    assert RequestRecord.objects.using(using).count() == 1
