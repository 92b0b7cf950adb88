"""The book by examples, and its windows. Integers only; no clock, no database."""

from __future__ import annotations

from datetime import UTC, datetime

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
from metering.ledger.entries import Granted
from metering.prices import Prices
from tests.cases import each_case
from tests.metering.operations import NOON_UNIX_S, book, narrow, reserve, settle, state

NOON = int(NOON_UNIX_S)
MIDNIGHT = NOON + DAY_S // 2
PRICES = Prices(input_micro_usd=3, cached_input_micro_usd=1, output_micro_usd=1_500_000)


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


@each_case(
    ("left", "num_choices", "granted"),
    [(1000, 1, 200), (250, 1, 150), (101, 1, 1), (250, 4, 148), (104, 4, 4)],
)
def test_otherwise_it_gets_what_the_budget_buys(left: int, num_choices: int, granted: int) -> None:
    budget = state(cap=1000, spent=1000 - left)
    got = book(budget).reserve(reserve(num_choices=num_choices))
    assert got.output_tokens == granted
    assert budget.reserved == 100 + granted


@each_case(("left", "num_choices"), [(100, 1), (0, 1), (103, 4)])
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


@each_case(
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


@each_case("window", [Window.BALANCE, Window.DAY, Window.SECONDS])
@each_case(
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


@each_case(
    ("spent", "reserved", "granted"),
    [
        (0, 0, 900),
        (0, 500, 400),  # the rest, while that is enough for an answer
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


def test_narrow_releases_and_never_takes() -> None:
    budget = state()
    one = book(budget)
    one.reserve(reserve())
    one.narrow(narrow(prompt_tokens=40))
    assert budget.reserved == 240
    one.narrow(narrow(prompt_tokens=400))
    assert budget.reserved == 240
    one.narrow(narrow("unknown"))


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


def test_a_neuron_that_reports_too_much_does_not_break_the_cap() -> None:
    budget = state(cap=300)
    one = book(budget)
    one.reserve(reserve())
    assert one.settle(settle(completion_tokens=10_000))
    assert (budget.spent, budget.reserved) == (300, 0)


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
