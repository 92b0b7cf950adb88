"""The book's windows: days, calendar months and tumbling seconds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.errors import QuotaExceededError
from metering.ledger.book import DAY_S, Window, calendar_end_s, start_s
from tests.metering.operations import NOON_UNIX_S, book, reserve, settle, state

NOON = int(NOON_UNIX_S)
MIDNIGHT = NOON + DAY_S // 2


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
