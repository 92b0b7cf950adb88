"""The book by examples and by properties. Integers only; no clock, no database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.errors import QuotaExceededError
from metering.ledger import windows
from metering.ledger.book import (
    RETRY_AFTER_RESERVED_S,
    Book,
    BudgetState,
    Unit,
    output_tokens_granted,
)
from metering.ledger.entries import Granted, Release, Reserve, Settle
from metering.ledger.windows import DAY_S, Window
from metering.prices import Prices
from tests.metering.operations import NOON_UNIX_S, narrow, reserve, settle, state

NOON = int(NOON_UNIX_S)
MIDNIGHT = NOON + DAY_S // 2
PRICES = Prices(input_micro_usd=3, cached_input_micro_usd=1, output_micro_usd=1_500_000)


def book(*budgets: BudgetState) -> Book:
    return Book({budget.id: budget for budget in budgets}, {})


# Reservations.


def test_what_a_client_named_is_held_or_refused() -> None:
    budget = state(cap=300)
    assert book(budget).reserve(reserve(output_tokens=200)) == Granted(output_tokens=200)
    assert budget.reserved == 300
    with pytest.raises(QuotaExceededError) as refused:
        book(state(cap=299)).reserve(reserve(output_tokens=200))
    assert (refused.value.needed, refused.value.left, refused.value.unit) == (300, 299, "tokens")
    assert "300 tokens" in str(refused.value) and "299 tokens" in str(refused.value)


def test_a_refusal_names_a_prompts_bound_as_one_and_money_as_money() -> None:
    """Its true length is not known yet."""
    budget = state(cap=300, unit=Unit.MICRO_USD)
    with pytest.raises(QuotaExceededError) as refused:
        book(budget).reserve(reserve(output_tokens=200, prices=PRICES))
    assert str(refused.value) == (
        "This request may need up to $0.000301 (at most 100 tokens of prompt, and 200 of output), "
        "and $0.0003 are left of the key's budget of $0.0003."
    )


@pytest.mark.parametrize(
    ("left", "num_choices", "granted"),
    [(1000, 1, 200), (250, 1, 150), (101, 1, 1), (250, 4, 148), (104, 4, 4)],
)
def test_otherwise_it_gets_what_the_budget_buys(left: int, num_choices: int, granted: int) -> None:
    budget = state(cap=1000, spent=1000 - left)
    got = book(budget).reserve(reserve(num_choices=num_choices))
    assert got.output_tokens == granted
    assert budget.reserved == 100 + granted


@pytest.mark.parametrize(("left", "num_choices"), [(100, 1), (0, 1), (103, 4)])
def test_less_than_a_token_for_each_choice_is_refused(left: int, num_choices: int) -> None:
    with pytest.raises(QuotaExceededError) as refused:
        book(state(cap=left)).reserve(reserve(num_choices=num_choices))
    assert (refused.value.needed, refused.value.left) == (100 + num_choices, left)


def test_the_tightest_of_several_budgets_decides_and_all_hold_or_none() -> None:
    wide, tight = state(id=1, cap=1000), state(id=2, cap=150)
    both = book(wide, tight)
    assert both.reserve(reserve(budgets=(1, 2))).output_tokens == 50
    assert (wide.reserved, tight.reserved) == (150, 150)
    with pytest.raises(QuotaExceededError) as refused:
        both.reserve(reserve("r2", budgets=(1, 2)))
    assert refused.value.budget == 2
    assert (wide.reserved, tight.reserved) == (150, 150)


def test_a_budget_that_was_deleted_binds_nobody() -> None:
    assert book().reserve(reserve(budgets=(7,))).output_tokens == 200


def test_the_same_reservation_again_replaces_the_first() -> None:
    budget = state(cap=300)
    one = book(budget)
    one.reserve(reserve(output_tokens=200))
    one.reserve(reserve(output_tokens=100))
    assert budget.reserved == 200
    assert one.held == {"r1": {1: 200}}


def test_money_is_held_at_its_dearest() -> None:
    budget = state(unit=Unit.MICRO_USD, cap=100)
    granted = book(budget).reserve(reserve(prompt_tokens=1_000_000, prices=PRICES))
    assert granted.output_tokens == 64  # 3 for the prompt, 1.5 each: 3 + 96 = 99, one more is 100.5
    assert budget.reserved == 99


def test_a_model_without_a_price_costs_no_money() -> None:
    budget = state(unit=Unit.MICRO_USD, cap=1, spent=1)
    assert book(budget).reserve(reserve()).output_tokens == 200
    assert budget.reserved == 0


def test_nothing_fits_a_cap_of_zero() -> None:
    with pytest.raises(QuotaExceededError):
        book(state(cap=0)).reserve(reserve())
    with pytest.raises(QuotaExceededError):
        book(state(unit=Unit.MICRO_USD, cap=0)).reserve(reserve(prices=PRICES))


def test_a_cap_that_was_lowered_leaves_nothing() -> None:
    assert state(cap=10, spent=8, reserved=7).left == 0


@pytest.mark.parametrize(
    ("budget", "retry_after_s"),
    [
        (state(cap=200, spent=200), None),
        (state(cap=200, spent=200, window=Window.DAY, window_ends_s=MIDNIGHT), DAY_S / 2),
        (state(cap=90, window=Window.DAY), None),  # would not fit tomorrow either
        (state(cap=200, reserved=200, window=Window.SECONDS, window_s=60), 1.0),
        (
            state(cap=200, spent=200, window=Window.SECONDS, window_s=60, window_ends_s=NOON + 5),
            5.0,
        ),
    ],
)
def test_when_it_is_worth_another_try(budget: BudgetState, retry_after_s: float | None) -> None:
    with pytest.raises(QuotaExceededError) as refused:
        book(budget).reserve(reserve())
    assert refused.value.retry_after_s == retry_after_s


@pytest.mark.parametrize("window", [Window.BALANCE, Window.DAY, Window.SECONDS])
@pytest.mark.parametrize(
    ("spent", "reserved", "is_reserved"), [(0, 200, True), (150, 50, False), (100, 100, True)]
)
def test_what_is_only_reserved_comes_back_in_seconds(
    window: Window, spent: int, reserved: int, is_reserved: bool
) -> None:
    window_s = 7200 if window is Window.SECONDS else None
    budget = state(cap=200, spent=spent, window=window, window_s=window_s, window_ends_s=MIDNIGHT)
    one = book(budget)
    budget.reserved = reserved
    with pytest.raises(QuotaExceededError) as refused:
        one.reserve(reserve(prompt_tokens=50, output_tokens=50))
    assert refused.value.is_reserved is is_reserved
    assert (refused.value.retry_after_s == RETRY_AFTER_RESERVED_S) is is_reserved
    assert "reserved by running requests" in str(refused.value)


def test_a_budget_that_is_spent_speaks_before_one_that_is_only_reserved() -> None:
    spent = state(id=1, cap=200, spent=200, window=Window.DAY, window_ends_s=MIDNIGHT)
    reserved = state(id=2, cap=200, reserved=200)
    with pytest.raises(QuotaExceededError) as refused:
        book(spent, reserved).reserve(reserve(budgets=(1, 2)))
    assert (refused.value.budget, refused.value.is_reserved) == (1, False)


@pytest.mark.parametrize(
    ("spent", "reserved", "granted"),
    [
        (0, 0, 900),
        (0, 500, 400),  # what is left, while that is an answer
        (0, 800, None),  # 100 are left, and more when the others have settled
        (800, 0, 100),  # all that it will ever be
        (700, 100, None),
    ],
)
def test_reservations_of_others_do_not_cut_an_answer_to_a_few_tokens(
    spent: int, reserved: int, granted: int | None
) -> None:
    one = book(budget := state(cap=1000, spent=spent))
    budget.reserved = reserved
    asked = reserve(prompt_tokens=100, default_output_tokens=2000)
    if granted is None:
        with pytest.raises(QuotaExceededError) as refused:
            one.reserve(asked)
        assert refused.value.is_reserved
    else:
        assert one.reserve(asked).output_tokens == granted


def test_of_two_short_budgets_the_one_that_stays_short_speaks() -> None:
    day = state(id=1, cap=200, spent=200, window=Window.DAY, window_ends_s=MIDNIGHT)
    balance = state(id=2, cap=200, spent=200)
    with pytest.raises(QuotaExceededError) as refused:
        book(day, balance).reserve(reserve(budgets=(1, 2)))
    assert refused.value.budget == 2


# What becomes of them.


def test_narrow_releases_and_never_takes() -> None:
    budget = state()
    one = book(budget)
    one.reserve(reserve())
    one.narrow(narrow(prompt_tokens=40))
    assert budget.reserved == 240
    one.narrow(narrow(prompt_tokens=400))
    assert budget.reserved == 240
    one.narrow(narrow("unknown"))


def test_settle_charges_what_was_used_where_it_was_reserved() -> None:
    here, elsewhere = state(id=1), state(id=2)
    one = book(here, elsewhere)
    one.reserve(reserve(budgets=(1,)))
    assert not one.settle(settle(budgets=(1, 2)))
    assert (here.spent, here.reserved) == (70, 0)
    assert (elsewhere.spent, elsewhere.reserved) == (0, 0)
    assert one.held == {}


def test_a_neuron_that_reports_too_much_does_not_break_the_cap() -> None:
    budget = state(cap=300)
    one = book(budget)
    one.reserve(reserve())
    assert one.settle(settle(completion_tokens=10_000))
    assert (budget.spent, budget.reserved) == (300, 0)


# Windows.


def test_a_day_begins_at_midnight_and_keeps_what_is_reserved() -> None:
    budget = state(window=Window.DAY, cap=300)
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


def test_what_ends_tomorrow_is_charged_tomorrow() -> None:
    budget = state(window=Window.DAY)
    one = book(budget)
    one.reserve(reserve("r1"))
    one.reserve(reserve("r2"))
    one.settle(settle("r1", ended_unix_s=MIDNIGHT - 0.001))
    assert budget.spent == 70
    one.settle(settle("r2", ended_unix_s=MIDNIGHT + 0.0))
    assert (budget.spent, budget.window_ends_s) == (70, MIDNIGHT + DAY_S)


def test_what_ended_yesterday_is_not_charged_today() -> None:
    budget = state(window=Window.DAY)
    one = book(budget)
    one.reserve(reserve("r1"))
    one.reserve(reserve("r2", now_unix_s=MIDNIGHT + 1))
    one.settle(settle("r1", ended_unix_s=MIDNIGHT - 1))
    assert (budget.spent, budget.reserved, budget.window_ends_s) == (0, 300, MIDNIGHT + DAY_S)


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


def test_a_clock_that_lags_behind_turns_nothing_back() -> None:
    budget = state(window=Window.DAY)
    one = book(budget)
    one.reserve(reserve("r1", now_unix_s=MIDNIGHT))
    one.reserve(reserve("r2", now_unix_s=MIDNIGHT - 100))
    assert budget.window_ends_s == MIDNIGHT + DAY_S


@given(st.integers(0, 4_000_000_000), st.sampled_from([Window.DAY, Window.MONTH]))
def test_calendar_windows(now_s: int, window: Window) -> None:
    ends_s = windows.calendar_end_s(window, now_s)
    start_s = windows.start_s(window, None, ends_s)
    assert start_s <= now_s < ends_s
    start, end = (datetime.fromtimestamp(at, UTC) for at in (start_s, ends_s))
    assert (start.hour, start.minute, start.second, end.hour) == (0, 0, 0, 0)
    if window is Window.MONTH:
        assert (start.day, end.day) == (1, 1)
        assert (end.year * 12 + end.month) - (start.year * 12 + start.month) == 1
    else:
        assert ends_s - start_s == DAY_S


# Money.

amounts = st.integers(0, 10**15)
tokens = st.integers(0, 10**9)
prices = st.builds(
    Prices,
    input_micro_usd=amounts,
    cached_input_micro_usd=amounts,
    output_micro_usd=amounts,
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


@given(prices, amounts, tokens)
def test_affordable_is_the_largest_number_that_fits(
    prices: Prices, micro_usd: int, prompt_tokens: int
) -> None:
    def fits(output_tokens: int) -> bool:
        return micro_usd >= prices.most_micro_usd(
            prompt_tokens=prompt_tokens, completion_tokens=output_tokens
        )

    affordable = prices.affordable_output_tokens(micro_usd=micro_usd, prompt_tokens=prompt_tokens)
    if affordable is None:
        assert fits(0) and fits(10**12)
    else:
        assert affordable < 0 or fits(affordable)
        assert not fits(affordable + 1)


# Any sequence of operations on any budgets.

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
