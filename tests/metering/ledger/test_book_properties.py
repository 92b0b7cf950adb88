"""The book and prices by properties, for any sequence of operations on any budgets."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from metering.errors import QuotaExceededError
from metering.ledger.book import DAY_S, Book, BudgetState, Unit, Window, output_tokens_granted
from metering.ledger.entries import Release, Reserve, Settle
from metering.prices import DearestPrices, Prices, highest
from tests.metering.operations import NOON_UNIX_S, narrow, reserve, settle

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
