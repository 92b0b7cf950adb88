"""The book and prices by properties, for any operations on any budgets, and by examples; dollars,
and how a request ended. Integers only; no clock, no database."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.errors import QuotaExceededError
from metering.ledger.book import (
    DAY_S,
    RETRY_AFTER_RESERVED_S,
    BudgetState,
    Unit,
    Window,
    calendar_end_s,
    start_s,
)
from metering.ledger.entries import Granted, Outcome, outcome_of
from metering.money import (
    DearestPrices,
    Metered,
    Prices,
    UnitPrices,
    cost_text,
    highest,
    micro_usd_of,
    usd_text,
)
from tests.cases import each_case
from tests.metering.operations import NOON_UNIX_S, book, narrow, reserve, settle, state

NOON = int(NOON_UNIX_S)
amounts = st.integers(0, 10**15)
tokens = st.integers(0, 10**9)
prices = st.builds(
    Prices, input_micro_usd=amounts, cached_input_micro_usd=amounts, output_micro_usd=amounts
)


@given(prices, tokens, tokens, st.data())
def test_what_it_costs_is_never_more_than_was_reserved(
    prices: Prices, prompt_tokens: int, output_tokens: int, data: st.DataObject
) -> None:
    prompt = data.draw(st.integers(0, prompt_tokens))
    cached = data.draw(st.integers(0, prompt))
    output = data.draw(st.integers(0, output_tokens))
    cost = prices.cost_micro_usd(
        prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output
    )
    assert cost >= 0
    assert cost <= prices.most_micro_usd(
        prompt_tokens=prompt_tokens, completion_tokens=output_tokens
    )
    exact = (
        Fraction((prompt - cached) * prices.input_micro_usd, 10**6)
        + Fraction(cached * prices.cached_input_micro_usd, 10**6)
        + Fraction(output * prices.output_micro_usd, 10**6)
    )
    assert exact <= cost < exact + 1


@given(st.lists(prices, min_size=1, max_size=4), amounts, tokens, tokens)
def test_the_dearest_of_several_prices_is_reserved(
    each: list[Prices], micro_usd: int, prompt_tokens: int, output_tokens: int
) -> None:
    """Exactly: nothing is refused that each of them alone would allow."""

    def cost(prices: Prices | DearestPrices, output_tokens: int) -> int:
        return prices.most_micro_usd(prompt_tokens=prompt_tokens, completion_tokens=output_tokens)

    dearest = DearestPrices(tuple(each))
    most = max(cost(one, output_tokens) for one in each)
    assert most == cost(dearest, output_tokens) <= cost(highest(each), output_tokens)
    for one in (dearest, *each):
        affordable = one.affordable_output_tokens(micro_usd=micro_usd, prompt_tokens=prompt_tokens)
        if affordable is None:
            assert cost(one, 10**12) <= micro_usd
        else:
            assert affordable < 0 or cost(one, affordable) <= micro_usd
            assert cost(one, affordable + 1) > micro_usd


MIDNIGHT = NOON + DAY_S // 2
PRICES = Prices(input_micro_usd=3, cached_input_micro_usd=1, output_micro_usd=1_500_000)
DAILY = {"window": Window.DAY, "window_ends_s": MIDNIGHT}
MINUTELY = {"window": Window.SECONDS, "window_s": 60}
LONG = {"default_output_tokens": 2000}
SOON = RETRY_AFTER_RESERVED_S
MONEY = {"unit": Unit.MICRO_USD}


@each_case(
    ("budget", "asked", "expected"),
    [
        (state(cap=300), {"output_tokens": 200}, (200, 300)),  # as the client named it
        (state(cap=299), {"output_tokens": 200}, (300, 299, None)),
        (state(), {}, (200, 300)),
        (state(spent=750), {}, (150, 250)),  # what the budget buys
        (state(spent=899), {}, (1, 101)),
        (state(spent=900), {}, (101, 100, None)),
        (state(cap=0), {}, (101, 0, None)),
        (state(cap=10, spent=8, reserved=7), {}, (101, 0, None)),  # its cap was lowered
        (state(spent=750), {"num_choices": 4}, (148, 248)),
        (state(spent=896), {"num_choices": 4}, (4, 104)),
        (state(spent=897), {"num_choices": 4}, (104, 103, None)),  # a token for each choice
        # At its dearest: 3 for the prompt, 1.5 each: 3 + 96 = 99, one more is 100.5.
        (state(cap=100, **MONEY), {"prompt_tokens": 1_000_000, "prices": PRICES}, (64, 99)),
        (state(cap=0, **MONEY), {"prices": PRICES}, (2, 0, None)),
        (state(cap=1, spent=1, **MONEY), {}, (200, 0)),  # a model without a price
        # Reservations of others do not cut an answer to a few tokens.
        (state(), LONG, (900, 1000)),
        (state(reserved=500), LONG, (400, 500)),  # the rest, while that is enough for an answer
        (state(reserved=800), LONG, (356, 200, SOON)),  # more when the others have settled
        (state(spent=800), LONG, (100, 200)),  # all that it will ever be
        (state(spent=700, reserved=100), LONG, (300, 200, SOON)),
        (state(cap=200, spent=200, **DAILY), {}, (101, 0, DAY_S / 2)),
        (state(cap=90, window=Window.DAY), {}, (101, 90, None)),  # nor would it fit tomorrow
        (state(cap=200, reserved=200, **MINUTELY), {}, (200, 0, SOON)),
        (state(cap=200, spent=200, **MINUTELY, window_ends_s=NOON + 5), {}, (101, 0, 5.0)),
        # What is only reserved comes back in seconds, whatever the window.
        *(
            (state(cap=200, **changes, **window), {"output_tokens": 0}, (100, left, retry_after_s))
            for window in ({}, DAILY, MINUTELY | {"window_ends_s": MIDNIGHT})
            for changes, left, retry_after_s in (
                ({"reserved": 200}, 0, SOON),
                ({"spent": 100, "reserved": 50}, 50, SOON),
                ({"spent": 150, "reserved": 50}, 0, DAY_S / 2 if window else None),
            )
        ),
    ],
)
def test_a_request_gets_what_the_budget_buys_or_when_to_try_again(
    budget: BudgetState, asked: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    """What is granted and held; or what is needed and left, and the seconds to wait."""
    one, before = book(budget), budget.reserved
    if len(expected) == 2:
        granted, held = expected
        assert one.reserve(reserve(**asked)) == Granted(output_tokens=granted)
        assert one.held == {"r1": {1: held}}
        assert budget.reserved == before + held
    else:
        with pytest.raises(QuotaExceededError) as refused:
            one.reserve(reserve(**asked))
        found = refused.value
        assert (found.needed, found.left, found.retry_after_s) == expected
        assert (found.unit, budget.reserved) == (budget.unit, before)
        assert found.is_reserved is (budget.spent + found.needed <= budget.cap)
        assert ("reserved by running requests" in str(found)) is (budget.reserved > 0)
    assert budget.left == max(0, budget.cap - budget.spent - budget.reserved)


def test_the_tightest_of_several_budgets_decides_speaks_and_all_hold_or_none() -> None:
    wide, tight = state(id=1, cap=1000), state(id=2, cap=150)
    both = book(wide, tight)
    assert both.reserve(reserve(budgets=(1, 2, 7))).output_tokens == 50, "the third was deleted"
    assert (wide.reserved, tight.reserved) == (150, 150)
    with pytest.raises(QuotaExceededError) as refused:
        both.reserve(reserve("r2", budgets=(1, 2)))
    assert refused.value.budget == 2
    assert (wide.reserved, tight.reserved) == (150, 150)
    both.reserve(reserve(budgets=(1, 2), output_tokens=20))
    assert (wide.reserved, tight.reserved) == (120, 120), "it replaces what it has reserved"
    for prompt_tokens in (40, 400):  # to narrow releases, and never takes
        both.narrow(narrow(budgets=(1, 2), prompt_tokens=prompt_tokens, output_tokens=20))
        assert (wide.reserved, tight.reserved) == (60, 60)
    both.narrow(narrow("unknown"))
    with pytest.raises(QuotaExceededError) as refused:
        book(state(cap=300, **MONEY)).reserve(reserve(output_tokens=200, prices=PRICES))
    assert str(refused.value) == (
        "This request may need up to $0.000301 (at most 100 tokens of prompt, and 200 of output), "
        "and $0.0003 are left of the key's budget of $0.0003."
    )
    # The spent one speaks before the reserved one, and the one that stays short before a day's.
    for second, speaks in ({"reserved": 200}, 1), ({"spent": 200}, 2):
        short = book(
            state(id=1, cap=200, spent=200, **DAILY),
            state(id=2, cap=200, **second),  # type: ignore[arg-type]
        )
        with pytest.raises(QuotaExceededError) as refused:
            short.reserve(reserve(budgets=(1, 2)))
        assert (refused.value.budget, refused.value.is_reserved) == (speaks, False)


def test_settle_charges_what_was_used_where_it_was_reserved_or_is_left() -> None:
    here, swept, full = state(id=1), state(id=2), state(id=3, cap=50)
    one = book(here, swept, full)
    one.reserve(reserve(budgets=(1,)))
    assert one.settle(settle(budgets=(1, 2, 3, 4))), "more than one of them has"
    found = [(each.spent, each.reserved) for each in (here, swept, full)]
    assert (found, one.held) == ([(70, 0), (70, 0), (50, 0)], {})
    one.reserve(reserve("r2"))
    assert one.settle(settle("r2", completion_tokens=10_000)), "no neuron breaks the cap"
    assert (here.spent, here.reserved) == (70 + 300, 0)


def test_windows_begin_and_keep_what_is_reserved() -> None:
    budget = state(cap=300, **DAILY)
    one = book(budget)
    one.reserve(reserve("late"))
    one.reserve(reserve("soon", output_tokens=0, prompt_tokens=0, now_unix_s=MIDNIGHT - 0.5))
    one.settle(settle("soon", prompt_tokens=0, completion_tokens=0))
    assert budget.window_ends_s == MIDNIGHT
    with pytest.raises(QuotaExceededError):
        one.reserve(reserve("r2", now_unix_s=MIDNIGHT - 1))
    budget.spent, budget.cap = 200, 700
    one.reserve(reserve("r3", now_unix_s=MIDNIGHT))
    assert (budget.spent, budget.reserved, budget.window_ends_s) == (0, 600, MIDNIGHT + DAY_S)
    one.reserve(reserve("lags", output_tokens=0, now_unix_s=MIDNIGHT - 100))
    assert budget.window_ends_s == MIDNIGHT + DAY_S, "a clock that lags turns nothing back"
    budget = state(window=Window.DAY)  # a request is charged to the day on which it ended
    one = book(budget)
    for request_id in ("r1", "r2", "r3"):
        one.reserve(reserve(request_id))
    one.settle(settle("r1", ended_unix_s=MIDNIGHT - 0.001))
    assert budget.spent == 70
    one.settle(settle("r2", ended_unix_s=MIDNIGHT + 0.0))
    assert (budget.spent, budget.window_ends_s) == (70, MIDNIGHT + DAY_S)
    one.settle(settle("r3", ended_unix_s=MIDNIGHT - 1))
    assert (budget.spent, budget.reserved) == (70, 0), "what ended yesterday is not today's"
    budget = state(**MINUTELY)  # seconds tumble from the first reservation
    one = book(budget)
    one.reserve(reserve("r1", now_unix_s=NOON))
    one.reserve(reserve("r2", now_unix_s=NOON + 59))
    assert budget.window_ends_s == NOON + 60
    one.settle(settle("r1", ended_unix_s=NOON + 59))
    assert budget.spent == 70
    one.settle(settle("r2", ended_unix_s=NOON + 100))
    assert (budget.spent, budget.reserved, budget.window_ends_s) == (0, 0, None)
    one.reserve(reserve("r3", now_unix_s=NOON + 200))
    assert budget.window_ends_s == NOON + 260


@given(st.integers(0, 4_000_000_000), st.sampled_from([Window.DAY, Window.MONTH]))
def test_calendar_windows(now_s: int, window: Window) -> None:
    ends_s = calendar_end_s(window, now_s)
    began_s = start_s(window, None, ends_s)
    assert began_s <= now_s < ends_s
    start, end = (datetime.fromtimestamp(at, UTC) for at in (began_s, ends_s))
    assert (start.hour, start.minute, start.second, end.hour) == (0, 0, 0, 0)
    if window is Window.MONTH:
        assert (start.day, end.day) == (1, 1)
        assert (end.year * 12 + end.month) - (start.year * 12 + start.month) == 1
    else:
        assert ends_s - began_s == DAY_S


def test_dollars_are_read_and_shown_and_what_was_spent_to_the_cent() -> None:
    for text, micro_usd, shown in (
        ("0", 0, "$0.00"),
        ("0.1", 100_000, "$0.10"),
        ("12.50", 12_500_000, "$12.50"),
        ("$3", 3_000_000, "$3.00"),
        ("1e-6", 1, "$0.000001"),
        ("0.0123", 12_300, "$0.0123"),
        ("1234.5", 1_234_500_000, "$1,234.50"),
        ("9000000000", 9_000_000_000_000_000, "$9,000,000,000.00"),
    ):
        assert (micro_usd_of(text), usd_text(micro_usd)) == (micro_usd, shown)
    assert usd_text(-20_000) == "-$0.02"
    for text in ("", "x", "-1", "0.0000001", "nan", "inf", "1e400", "9000000001", "1,5"):
        with pytest.raises(ValueError, match=r"US dollars|decimals"):
            micro_usd_of(text)
    for micro_usd, text in (
        (0, "$0.00"),
        (1_230, "$0.00123"),
        (9_999, "$0.009999"),
        (10_000, "$0.01"),
        (333_446, "$0.33"),
        (335_000, "$0.34"),
        (999_999_999, "$1,000.00"),
    ):
        assert cost_text(micro_usd) == text


def test_units_cost_what_they_cost_and_each_request_beside() -> None:
    prices = UnitPrices(request_micro_usd=1_500_000, unit_micro_usd=100)
    metered = prices.metered("second", 2_000_001)
    assert metered == Metered(unit="second", num_units=2_000_001, micro_usd=202)
    assert prices.metered("second", 0).micro_usd == 2
    assert UnitPrices().metered("image", 9).micro_usd == 0
    assert prices.less(50) == UnitPrices(request_micro_usd=750_000, unit_micro_usd=50)
    assert prices.less(0) == prices
    three = Prices(input_micro_usd=3, cached_input_micro_usd=3, output_micro_usd=5)
    assert Prices.named(input=3, cached_input=None, output=5) == three
    named = Prices.named(input=3, cached_input=0, output=5)
    assert named == Prices(input_micro_usd=3, cached_input_micro_usd=0, output_micro_usd=5)
    assert Prices.named(input=None, cached_input=1, output=5) is None
    assert Prices.named(input=3, cached_input=1, output=None) is None
    for percent, expected in ((0, 3), (50, 2), (99, 1), (100, 0)):  # a discount rounds up
        discounted = Prices.named(input=3, cached_input=3, output=3)
        assert discounted is not None
        assert discounted.less(percent) == Prices.named(
            input=expected, cached_input=expected, output=expected
        )


def test_outcomes() -> None:
    refused = (("invalid_api_key", 401), ("insufficient_quota", 429), ("queue_timeout", 503))
    failed = (("database_unavailable", 503), ("redis_unavailable", 503), ("internal_error", 500))
    for kind, is_placed, ended in (
        (Outcome.ANSWERED, True, [("finished", 0)]),
        (Outcome.CANCELLED, False, [("cancelled", 0)]),
        (Outcome.CANCELLED, True, [("cancelled", 0)]),
        (Outcome.FAILED, True, [("cancelled", 503)]),  # by its neuron, while its client waited
        (Outcome.REFUSED, False, [*refused, ("model_loading", 503), ("shutting_down", 503)]),
        (Outcome.REFUSED, True, [("context_length_exceeded", 400), ("queue_full", 503)]),
        (Outcome.FAILED, False, failed),
        (Outcome.FAILED, True, [("storage_unavailable", 503), ("neuron_lost", 503)]),
        (Outcome.FAILED, True, [("engine_crashed", 502)]),
    ):
        for code, error_status in ended:
            found = outcome_of(code=code, error_status=error_status, is_placed=is_placed)
            assert found is kind, code
