"""Requests that are metered without tokens: reserved, charged and recorded by their money."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metering.errors import QuotaExceededError
from metering.ledger import store
from metering.ledger.book import Unit
from metering.ledger.entries import Granted, Settle
from metering.ledger.spool_files import SpoolFile
from metering.models import Budget, LedgerEntry, RequestRecord, UsageHour
from metering.prices import DearestPrices, Metered, Prices
from metering.request_records import rows
from metering.requests.shown import all_fields, details
from tests.metering.operations import book, make_budget, reserve, settle, state
from tests.metering.request_records.records import ended

NONE = {"prompt_tokens": 0, "output_tokens": 0, "default_output_tokens": 0}
NOTHING = dict.fromkeys(
    ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"), 0
)
MOST = Metered(unit="second", num_units=80, micro_usd=161)
USED = Metered(unit="second", num_units=5, micro_usd=11)


def test_money_is_reserved_and_charged_and_tokens_are_not() -> None:
    money, tokens = state(id=1, cap=200, unit=Unit.MICRO_USD), state(id=2, cap=0)
    both = book(money, tokens)
    both.reserve(reserve(budgets=(1, 2), metered=MOST, **NONE))
    assert (money.reserved, tokens.reserved) == (161, 0)
    with pytest.raises(QuotaExceededError, match=r"at most 80 seconds\).*\$0.000039 are left"):
        both.reserve(reserve("r2", budgets=(1, 2), metered=MOST, **NONE))
    assert not both.settle(settle(budgets=(1, 2), metered=USED, **NOTHING))
    assert (money.spent, money.reserved, tokens.spent) == (11, 0, 0)


def test_no_more_is_charged_than_was_reserved() -> None:
    money = state(cap=200, unit=Unit.MICRO_USD)
    one = book(money)
    one.reserve(reserve(metered=USED, **NONE))
    assert one.settle(settle(metered=MOST, **NOTHING))
    assert money.spent == 11


def test_the_ledger_has_units_and_their_cost(using: str) -> None:
    store.apply([settle(budgets=(), metered=USED, **NOTHING)], using=using)
    entry = LedgerEntry.objects.using(using).get()
    assert (entry.unit, entry.num_units, entry.cost_micro_usd) == ("second", 5, 11)
    assert UsageHour.objects.using(using).get().cost_micro_usd == 11


def test_the_dearest_price_is_reserved_and_the_one_that_served_is_charged(using: str) -> None:
    """The second request would fit if the first one had its own price alone."""
    id = make_budget(using, unit=Unit.MICRO_USD, cap=1_000)
    own, cloud = Prices(input_micro_usd=10**6), Prices(input_micro_usd=6 * 10**6)
    wanted = {"budgets": (id,), "prompt_tokens": 100, "output_tokens": 0}
    first = reserve("r1", prices=DearestPrices((own, cloud)), **wanted)
    second = reserve("r2", prices=DearestPrices((own, cloud)), **wanted)
    granted, refused = store.apply([first, second], using=using)
    assert isinstance(granted, Granted)
    assert isinstance(refused, QuotaExceededError)
    assert (refused.needed, refused.left) == (600, 400)
    used = settle("r1", budgets=(id,), prices=own, **{**NOTHING, "prompt_tokens": 90})
    store.apply([used], using=using)
    assert LedgerEntry.objects.using(using).get().cost_micro_usd == 90
    assert Budget.objects.using(using).get(id=id).spent == 90
    (granted,) = store.apply([second], using=using)
    assert isinstance(granted, Granted)


@pytest.mark.django_db(transaction=True)
def test_a_record_shows_them() -> None:
    rows.insert([ended(metered=USED, **NOTHING), ended()])
    found = {record.unit: record for record in RequestRecord.objects.all()}
    assert found["second"].num_units == 5 and found[""].num_units == 0
    shown = {one.name: one.value for one in details(found["second"], "", is_operator=False)}
    assert (shown["Metered"], shown["Cost"]) == ("5 seconds", "$0.000011")
    (fields,) = all_fields([found["second"]])
    assert (fields["unit"], fields["num_units"]) == ("second", 5)


def test_a_bill_on_disk_keeps_them_and_older_ones_have_none(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path, "g1")
    file.write(0, settle(metered=USED))
    assert [one.metered for one in file.read()] == [USED]
    file.remove()
    older = msgspec.to_builtins(settle())
    del older["metered"]
    assert msgspec.convert(older, Settle) == settle()
