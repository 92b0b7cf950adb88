"""The book and prices by properties, for any operations on any budgets, and by examples. Integers
only; no clock, no database."""

from __future__ import annotations

from dataclasses import replace
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
    Book,
    BudgetState,
    Unit,
    Window,
    calendar_end_s,
    output_tokens_granted,
    start_s,
)
from metering.ledger.entries import Granted, Release, Reserve, Settle
from metering.money import DearestPrices, Prices, highest
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


budget_states = st.builds(
    lambda **fields: BudgetState(owner="key", id=0, **fields),
    unit=st.sampled_from(Unit),
    cap=st.integers(0, 2000),
    window=st.sampled_from(Window),
).map(lambda budget: replace(budget, window_s=60 if budget.window is Window.SECONDS else None))
request_ids = st.sampled_from(["r1", "r2", "r3", "r4"])
times = st.integers(NOON, NOON + 3 * DAY_S)
small_prices = st.builds(
    Prices,
    input_micro_usd=st.integers(0, 3_000_000),
    cached_input_micro_usd=st.integers(0, 3_000_000),
    output_micro_usd=st.integers(0, 3_000_000),
)
operations = st.one_of(
    st.builds(
        reserve,
        request_ids,
        prompt_tokens=st.integers(0, 500),
        output_tokens=st.none() | st.integers(0, 500),
        default_output_tokens=st.integers(1, 500),
        num_choices=st.integers(1, 3),
        prices=small_prices,
        now_unix_s=times,
    ),
    st.builds(
        narrow, request_ids, prompt_tokens=st.integers(0, 500), output_tokens=st.integers(0, 500)
    ),
    st.builds(
        settle,
        request_ids,
        prompt_tokens=st.integers(0, 5000),
        completion_tokens=st.integers(0, 5000),
        prices=small_prices,
        ended_unix_s=times,
    ),
    st.builds(Release, request_id=request_ids, budgets=st.just((1, 2, 3))),
)


@given(
    st.lists(budget_states, min_size=1, max_size=3),
    st.lists(operations, max_size=40),
    st.sets(st.integers(1, 3)),
)
def test_no_cap_is_ever_passed(
    states: list[BudgetState], queued: list[object], bound: set[int]
) -> None:
    budgets = {number: replace(each, id=number) for number, each in enumerate(states, 1)}
    one = Book(budgets, {})
    for operation in queued:
        before = {id: (each.spent, each.reserved) for id, each in budgets.items()}
        match operation:
            case Reserve():
                asked = replace(operation, budgets=tuple(sorted(bound)))
                try:
                    granted = one.reserve(asked).output_tokens
                except QuotaExceededError as refused:
                    assert refused.needed > refused.left
                    assert asked.request_id not in one.held
                else:
                    named = asked.output_tokens
                    assert granted == named if named is not None else granted >= asked.num_choices
                    assert granted <= output_tokens_granted(asked)
            case Settle():
                one.settle(operation)
            case Release():
                one.release(operation.request_id)
            case _:
                one.narrow(operation)  # type: ignore[arg-type]
        for id, each in budgets.items():
            held = sum(amounts.get(id, 0) for amounts in one.held.values())
            assert each.reserved == held
            assert each.spent >= 0 and each.spent + each.reserved <= each.cap
            if (each.spent, each.reserved) != before[id]:
                assert id in one.changed


MIDNIGHT = NOON + DAY_S // 2
PRICES = Prices(input_micro_usd=3, cached_input_micro_usd=1, output_micro_usd=1_500_000)


DAILY = {"window": Window.DAY, "window_ends_s": MIDNIGHT}
MINUTELY = {"window": Window.SECONDS, "window_s": 60}
LONG = {"default_output_tokens": 2000}
MONEY = {"unit": Unit.MICRO_USD}


@each_case(
    ("budget", "asked", "granted", "held"),
    [
        (state(cap=300), {"output_tokens": 200}, 200, 300),  # as the client named it
        (state(cap=299), {"output_tokens": 200}, None, 0),
        (state(), {}, 200, 300),
        (state(spent=750), {}, 150, 250),  # what the budget buys
        (state(spent=899), {}, 1, 101),
        (state(spent=900), {}, None, 0),
        (state(cap=0), {}, None, 0),
        (state(cap=10, spent=8, reserved=7), {}, None, 0),  # its cap was lowered
        (state(spent=750), {"num_choices": 4}, 148, 248),
        (state(spent=896), {"num_choices": 4}, 4, 104),
        (state(spent=897), {"num_choices": 4}, None, 0),  # less than a token for each choice
        # At its dearest: 3 for the prompt, 1.5 each: 3 + 96 = 99, one more is 100.5.
        (state(cap=100, **MONEY), {"prompt_tokens": 1_000_000, "prices": PRICES}, 64, 99),
        (state(cap=0, **MONEY), {"prices": PRICES}, None, 0),
        (state(cap=1, spent=1, **MONEY), {}, 200, 0),  # a model without a price
        # Reservations of others do not cut an answer to a few tokens.
        (state(), LONG, 900, 1000),
        (state(reserved=500), LONG, 400, 500),  # the rest, while that is enough for an answer
        (state(reserved=800), LONG, None, 0),  # more when the others have settled
        (state(spent=800), LONG, 100, 200),  # all that it will ever be
        (state(spent=700, reserved=100), LONG, None, 0),
    ],
)
def test_a_request_gets_what_the_budget_buys_and_holds_it(
    budget: BudgetState, asked: dict[str, Any], granted: int | None, held: int
) -> None:
    one, before = book(budget), budget.reserved
    if granted is None:
        with pytest.raises(QuotaExceededError):
            one.reserve(reserve(**asked))
    else:
        assert one.reserve(reserve(**asked)) == Granted(output_tokens=granted)
        assert one.held == {"r1": {1: held}}
    assert budget.reserved == before + held
    assert budget.left == max(0, budget.cap - budget.spent - budget.reserved)


@each_case(
    ("budget", "asked", "needed", "left", "retry_after_s"),
    [
        (state(cap=299), {"output_tokens": 200}, 300, 299, None),
        (state(cap=103), {"num_choices": 4}, 104, 103, None),
        (state(cap=200, spent=200), {}, 101, 0, None),
        (state(cap=200, spent=200, **DAILY), {}, 101, 0, DAY_S / 2),
        (state(cap=90, window=Window.DAY), {}, 101, 90, None),  # would not fit tomorrow either
        (state(cap=200, reserved=200, **MINUTELY), {}, 200, 0, RETRY_AFTER_RESERVED_S),
        (state(cap=200, spent=200, **MINUTELY, window_ends_s=NOON + 5), {}, 101, 0, 5.0),
        # What is only reserved comes back in seconds, whatever the window.
        *(
            (state(cap=200, **changes, **window), {"output_tokens": 0}, 100, left, retry_after_s)
            for window in ({}, DAILY, MINUTELY | {"window_ends_s": MIDNIGHT})
            for changes, left, retry_after_s in (
                ({"reserved": 200}, 0, RETRY_AFTER_RESERVED_S),
                ({"spent": 100, "reserved": 50}, 50, RETRY_AFTER_RESERVED_S),
                ({"spent": 150, "reserved": 50}, 0, DAY_S / 2 if window else None),
            )
        ),
    ],
)
def test_a_refusal_has_its_numbers_and_when_it_is_worth_another_try(
    budget: BudgetState, asked: dict[str, Any], needed: int, left: int, retry_after_s: float | None
) -> None:
    with pytest.raises(QuotaExceededError) as refused:
        book(budget).reserve(reserve(**asked))
    found = refused.value
    assert (found.needed, found.left, found.unit) == (needed, left, "tokens")
    assert found.retry_after_s == retry_after_s
    assert found.is_reserved is (budget.spent + needed <= budget.cap)
    assert ("reserved by running requests" in str(found)) is (budget.reserved > 0)


def test_the_tightest_of_several_budgets_decides_and_all_hold_or_none() -> None:
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


def test_what_a_refusal_says() -> None:
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
    assert [(each.spent, each.reserved) for each in (here, swept, full)] == [
        (70, 0),
        (70, 0),
        (50, 0),
    ]
    assert one.held == {}
    one.reserve(reserve("r2"))
    assert one.settle(settle("r2", completion_tokens=10_000)), "no neuron breaks the cap"
    assert (here.spent, here.reserved) == (70 + 300, 0)


def test_a_day_begins_at_midnight_and_keeps_what_is_reserved() -> None:
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


def test_seconds_tumble_from_the_first_reservation() -> None:
    budget = state(window=Window.SECONDS, window_s=60)
    one = book(budget)
    assert budget.window_ends_s is None
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
