"""Requests that wait for others' reservations, over the real arithmetic of budgets in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inference.gateway.request.reserve import ReservationQueue
from metering.errors import LedgerUnavailableError, QuotaExceededError
from metering.ledger.book import Book
from metering.ledger.entries import Granted, Reserve
from tests.cases import each_case
from tests.inference.gateway.waiting import until
from tests.metering.operations import reserve, settle, state


class BookLedger:
    """One book, and how often it was asked to reserve."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.num_asked = 0

    async def reserve(self, reserve: Reserve) -> Granted:
        self.num_asked += 1
        await asyncio.sleep(0)
        return self.book.reserve(reserve)


def queue_of(
    cap: int = 300, *, max_waiting: int = 1000, wait_s: float = 60.0
) -> tuple[ReservationQueue, BookLedger]:
    ledger = BookLedger(Book({1: state(cap=cap)}, {}))
    return ReservationQueue(ledger, max_waiting=max_waiting, wait_s=wait_s), ledger


def end(queue: ReservationQueue, ledger: BookLedger, request_id: str, used: int) -> None:
    ledger.book.settle(settle(request_id, prompt_tokens=used, completion_tokens=0))
    queue.freed((1,))


def asked(request_id: str, output_tokens: int = 200) -> Reserve:
    return reserve(request_id, output_tokens=output_tokens)


async def test_a_request_waits_until_a_reservation_settles() -> None:
    queue, ledger = queue_of(cap=400)
    await queue.reserve(asked("r1"))
    waiting = asyncio.create_task(queue.reserve(asked("r2")))
    await until(lambda: queue.num_waiting == 1)
    end(queue, ledger, "r1", used=20)
    assert await waiting == Granted(output_tokens=200)
    assert queue.num_waiting == 0
    assert ledger.book.held == {"r2": {1: 300}}


async def test_many_requests_under_one_cap_are_served_one_after_the_other_and_never_over() -> None:
    """Two hundred at once that reserve three times what they use: all are served, in the order
    in which they came, and only the first of the line asks."""
    queue, ledger = queue_of(cap=10_000)
    budget = ledger.book.budgets[1]
    served: list[str] = []

    async def one(request_id: str) -> None:
        await queue.reserve(asked(request_id))
        assert budget.spent + budget.reserved <= budget.cap
        served.append(request_id)
        await asyncio.sleep(0)
        end(queue, ledger, request_id, used=45)

    names = [f"r{number}" for number in range(200)]
    await asyncio.gather(*(one(name) for name in names))
    assert served == names
    assert (budget.spent, budget.reserved, queue.num_waiting) == (9000, 0, 0)
    assert ledger.num_asked < 5 * len(names)


async def test_a_spent_budget_is_refused_at_once() -> None:
    queue, ledger = queue_of()
    ledger.book.budgets[1].spent = 250
    with pytest.raises(QuotaExceededError) as refused:
        await queue.reserve(asked("r1"))
    assert not refused.value.is_reserved
    assert ledger.num_asked == 1


async def test_a_budget_that_is_spent_meanwhile_ends_the_waiting() -> None:
    queue, ledger = queue_of()
    await queue.reserve(asked("r1"))
    waiting = asyncio.create_task(queue.reserve(asked("r2")))
    await until(lambda: queue.num_waiting == 1)
    end(queue, ledger, "r1", used=290)
    with pytest.raises(QuotaExceededError) as refused:
        await waiting
    assert not refused.value.is_reserved


@each_case("num_waiting", [1, 3])
async def test_waiting_has_an_end(num_waiting: int) -> None:
    queue, ledger = queue_of(wait_s=0.05)
    await queue.reserve(asked("r1"))
    outcomes = await asyncio.gather(
        *(queue.reserve(asked(f"w{number}")) for number in range(num_waiting)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == num_waiting * [QuotaExceededError]
    assert all(outcome.is_reserved for outcome in outcomes)  # type: ignore[union-attr]
    assert queue.num_waiting == 0
    assert ledger.book.held == {"r1": {1: 300}}


async def test_no_more_wait_than_may() -> None:
    queue, _ledger = queue_of(max_waiting=1)
    await queue.reserve(asked("r1"))
    waiting = asyncio.create_task(queue.reserve(asked("r2")))
    await until(lambda: queue.num_waiting == 1)
    with pytest.raises(QuotaExceededError) as refused:
        await queue.reserve(asked("r3"))
    assert refused.value.is_reserved
    waiting.cancel()
    await asyncio.wait({waiting})
    assert queue.num_waiting == 0


async def test_who_leaves_lets_the_next_one_try() -> None:
    queue, ledger = queue_of(cap=300)
    await queue.reserve(asked("r1"))
    large = asyncio.create_task(queue.reserve(asked("large")))
    await until(lambda: queue.num_waiting == 1)
    small = asyncio.create_task(queue.reserve(asked("small", output_tokens=10)))
    await until(lambda: queue.num_waiting == 2)
    ledger.book.settle(settle("r1", prompt_tokens=20, completion_tokens=0))
    large.cancel()
    assert await small == Granted(output_tokens=10)


async def test_what_another_gateway_settles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.request.reserve.POLL_INTERVAL_S", 0.01)
    queue, ledger = queue_of()
    await queue.reserve(asked("r1"))
    waiting = asyncio.create_task(queue.reserve(asked("r2", output_tokens=100)))
    await until(lambda: queue.num_waiting == 1)
    ledger.book.settle(settle("r1", prompt_tokens=20, completion_tokens=0))
    assert await waiting == Granted(output_tokens=100)


async def test_a_ledger_that_stands_still_ends_the_waiting_of_all_at_once() -> None:
    queue, ledger = queue_of()
    await queue.reserve(asked("r1"))
    waiting = [asyncio.create_task(queue.reserve(asked(f"w{number}"))) for number in range(5)]
    await until(lambda: queue.num_waiting == len(waiting))
    num_asked = ledger.num_asked

    async def away(reserve: Reserve) -> Granted:
        ledger.num_asked += 1
        raise LedgerUnavailableError("gone")

    replaced: Callable[[Reserve], object] = away
    ledger.reserve = replaced  # type: ignore[assignment,method-assign]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == len(waiting) * [LedgerUnavailableError]
    assert ledger.num_asked == num_asked + 1
    assert queue.num_waiting == 0


@each_case("waits", [True, False])
async def test_a_failing_ledger_ends_the_waiting(waits: bool) -> None:
    queue, ledger = queue_of()
    if waits:
        await queue.reserve(asked("r1"))
    waiting = asyncio.create_task(queue.reserve(asked("r2")))
    if waits:
        await until(lambda: queue.num_waiting == 1)

    async def broken(reserve: Reserve) -> Granted:
        raise ConnectionError("gone")

    replaced: Callable[[Reserve], object] = broken
    ledger.reserve = replaced  # type: ignore[assignment,method-assign]
    queue.freed((1,))
    with pytest.raises(ConnectionError):
        await waiting
    assert queue.num_waiting == 0
