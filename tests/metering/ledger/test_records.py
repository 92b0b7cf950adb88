"""A bill and its record are written together, or neither is."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from django.db import OperationalError

from metering.ledger import store
from metering.ledger.entries import Outcome, RecordFields, Settle
from metering.models import LedgerEntry, RequestRecord, SeriesRow
from metering.request_records import rows
from tests.metering.operations import settle
from tests.metering.request_records.records import ended

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
