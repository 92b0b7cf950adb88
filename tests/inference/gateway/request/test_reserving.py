"""What a request reserves of its budget before and while it runs, and its refusals for budgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.reserve import ReservationQueue, _refusal
from inference.gateway.request.tokens import PromptRatios
from inference.protocol.heartbeat import ReplicaStatus
from metering.errors import LedgerUnavailableError, QuotaExceededError
from metering.ledger.book import Book
from metering.ledger.entries import Granted, Reserve
from tests.cases import each_case
from tests.inference.gateway.bodies import until
from tests.inference.gateway.conftest import CHAT, SHORT_CHAT, Rig
from tests.inference.gateway.fake_neuron import FakeNeuron, counting, endless, paris
from tests.metering.operations import reserve, settle, state


async def test_the_worst_case_is_held_and_narrowed_and_more_is_refused(
    rig: Rig, neuron: FakeNeuron
) -> None:
    rig.cap()
    neuron.script = counting(81)
    for _ in range(2):
        assert (await rig.ask(max_tokens=50)).status == 200
    first, second = rig.ledger.reserved
    assert first.output_tokens == second.output_tokens == 50
    assert 81 < second.prompt_tokens < first.prompt_tokens < 200
    assert [(one.prompt_tokens, one.output_tokens) for one in rig.ledger.narrowed] == [(81, 50)] * 2
    assert {one.budgets for one in rig.ledger.settled} == {(1,)}
    rig.ledger.settled.clear()
    rig.cap(600)
    answer = await rig.ask(max_tokens=1000)
    assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
    assert answer.error["type"] == "insufficient_quota"
    assert "600" in answer.error["message"]
    assert "retry-after" not in answer.headers
    rig.cap(0)
    neuron.status = None
    await neuron.beat()
    assert (await rig.ask()).status == 429
    assert not rig.ledger.settled and not rig.ledger.held
    assert rig.catalogue.loads == [], "a spent budget loads nothing"


@each_case(
    ("retry_after_s", "is_reserved", "owner", "code", "cause"),
    [
        (3600.0, False, "account", "rate_limit_exceeded", "account_budget"),
        (3600.0, False, "key", "rate_limit_exceeded", "key_budget"),
        (None, False, "key", "insufficient_quota", "key_budget"),
        (1.0, True, "key", "budget_reserved", "reserved"),
    ],
)
def test_a_refusal_has_its_cause(
    retry_after_s: float | None, is_reserved: bool, owner: str, code: str, cause: str
) -> None:
    numbers: dict[str, Any] = {"budget": 1, "unit": "micro_usd", "needed": 2, "left": 0}
    why = {"retry_after_s": retry_after_s, "is_reserved": is_reserved, "owner": owner}
    refusal = _refusal(QuotaExceededError("It is spent.", **numbers | why))
    assert (refusal.code, refusal.cause) == (code, cause)


async def test_waits_in_line(rig: Rig, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.cap(1500)
    queue = rig.gateway.accounting.queue
    neuron.script = endless
    exchange = rig.open(stream=True, max_tokens=1000)
    await exchange.until(b"on and")
    monkeypatch.setattr(queue, "_wait_s", 0.05)
    refused = await rig.ask(max_tokens=1000)
    assert (refused.status, refused.error["code"]) == (429, "budget_reserved")
    assert refused.headers["retry-after"] == "1"
    assert "x-should-retry" not in refused.headers
    monkeypatch.setattr(queue, "_wait_s", 60.0)
    waiting = rig.open(max_tokens=1000)
    await until(lambda: queue.num_waiting)
    neuron.script = paris
    exchange.leave()
    await exchange.finish()
    assert (await waiting.finish()).status == 200
    assert rig.ledger.held == {}


@pytest.mark.parametrize(
    ("num_tokens", "reports_count", "cap", "num_reserved"),
    [(250, True, None, 2), (250, False, None, 2), (250, True, 255, 2), (1_000_000, True, None, 1)],
    ids=["fits", "a neuron of an earlier version", "the cap has no room", "an impossible length"],
)
async def test_a_prompt_longer_than_reserved_is_reserved_by_its_length_or_refused(
    rig: Rig,
    neuron: FakeNeuron,
    num_tokens: int,
    reports_count: bool,
    cap: int | None,
    num_reserved: int,
) -> None:
    """Before anything is computed: the reservation is never less than the prompt's tokens. A neuron
    of an earlier version does not report the length: then the sure bound is reserved."""
    ledger = rig.ledger
    rig.cap(cap)
    neuron.script = counting(num_tokens, reports_count=reports_count)
    answer = await rig.ask(max_tokens=9)
    assert (len(ledger.reserved), ledger.held) == (num_reserved, {})
    submits = [neuron.submitted.get_nowait() for _ in range(neuron.submitted.qsize())]
    if cap or num_reserved == 1:
        assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
        assert not any(one.prompt_tokens + one.completion_tokens for one in ledger.settled)
        return
    near, sure = (reserve.prompt_tokens for reserve in ledger.reserved)
    assert near < 250 <= sure
    assert (sure == 250) is reports_count
    assert [submit.max_prompt_tokens for submit in submits] == [near, sure]
    assert answer.status == 200
    assert (rig.settled.prompt_tokens, rig.settled.completion_tokens) == (250, 5)


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_is_reserved_only_grows(rig: Rig, neuron: FakeNeuron, leaves: bool) -> None:
    """One token of prompt and one of answer while its model is loaded, so that a spent budget loads
    nothing and others' requests run; the worst case when it is placed. Nothing is released in
    between unless the client leaves, and nothing is left."""
    ledger = rig.ledger
    rig.cap()
    neuron.status = None
    await neuron.beat()
    asked = rig.open()
    await until(lambda: rig.catalogue.loads)
    assert (list(ledger.held.values()), ledger.released) == ([2], [])
    if leaves:
        asked.leave()
        await asked.finish()
        assert (len(ledger.reserved), len(ledger.released), ledger.held) == (1, 1, {})
        return
    neuron.status = ReplicaStatus.READY
    await neuron.beat()
    assert (await asked.finish()).status == 200
    assert [reserve.prompt_tokens == 1 for reserve in ledger.reserved] == [True, False]
    assert (ledger.released, len(ledger.settled), ledger.held) == ([], 1, {})


async def test_without_the_database_nothing_is_taken(rig: Rig, neuron: FakeNeuron) -> None:
    rig.cap()
    rig.ledger.is_away = True
    away = await rig.ask()
    anonymous = await rig.client.post(CHAT, SHORT_CHAT)
    assert anonymous.status == 200, "a caller without a cap is served"
    rig.ledger.is_away, rig.ledger.is_full = False, True
    for answer in (away, await rig.ask(), await rig.client.post(CHAT, SHORT_CHAT)):
        assert (answer.status, answer.error["code"]) == (503, "database_unavailable")


class BookLedger:
    """One book, and how often it was asked to reserve."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.num_asked = 0
        self.failure: Exception | None = None

    async def reserve(self, reserve: Reserve) -> Granted:
        self.num_asked += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.book.reserve(reserve)


def queue_of(
    cap: int = 300, *, max_waiting: int = 1000, wait_s: float = 60.0
) -> tuple[ReservationQueue, BookLedger]:
    ledger = BookLedger(Book({1: state(cap=cap)}, {}))
    return ReservationQueue(ledger, max_waiting=max_waiting, wait_s=wait_s), ledger


async def waits(queue: ReservationQueue, *requests: Reserve) -> list[asyncio.Task[Granted]]:
    """Requests that wait in the line, one after the other."""
    tasks = []
    for request in requests:
        num_waiting = queue.num_waiting
        tasks.append(asyncio.create_task(queue.reserve(request)))
        await until(lambda num=num_waiting: queue.num_waiting == num + 1)
    return tasks


def end(queue: ReservationQueue, ledger: BookLedger, request_id: str) -> None:
    ledger.book.settle(settle(request_id, prompt_tokens=45, completion_tokens=0))
    queue.freed((1,))


def asked(request_id: str, output_tokens: int = 200) -> Reserve:
    return reserve(request_id, output_tokens=output_tokens)


@each_case(
    ("settles", "cap", "used", "granted"),
    [
        ("here", 400, 20, 200),
        ("at another gateway", 300, 20, 100),
        ("and the budget is spent", 300, 290, None),
    ],
)
async def test_a_request_waits_until_a_reservation_settles(
    monkeypatch: pytest.MonkeyPatch, settles: str, cap: int, used: int, granted: int | None
) -> None:
    queue, ledger = queue_of(cap)
    await queue.reserve(asked("r1"))
    if settles == "at another gateway":
        monkeypatch.setattr("inference.gateway.request.reserve.POLL_INTERVAL_S", 0.01)
    (waiting,) = await waits(queue, asked("r2", output_tokens=granted or 200))
    ledger.book.settle(settle("r1", prompt_tokens=used, completion_tokens=0))
    if settles != "at another gateway":
        queue.freed((1,))
    if granted is None:
        with pytest.raises(QuotaExceededError) as refused:
            await waiting
        assert not refused.value.is_reserved
    else:
        assert await waiting == Granted(output_tokens=granted)
        assert ledger.book.held == {"r2": {1: 100 + granted}}
    assert queue.num_waiting == 0


async def test_many_under_one_cap_and_no_more_than_may_wait() -> None:
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
        end(queue, ledger, request_id)

    names = [f"r{number}" for number in range(200)]
    await asyncio.gather(*(one(name) for name in names))
    assert served == names
    assert (budget.spent, budget.reserved, queue.num_waiting) == (9000, 0, 0)
    assert ledger.num_asked < 5 * len(names)
    # No more wait than may and who leaves lets the next one try.
    queue, ledger = queue_of(max_waiting=2)
    await queue.reserve(asked("r1"))
    large, small = await waits(queue, asked("large"), asked("small", output_tokens=10))
    with pytest.raises(QuotaExceededError) as refused:
        await queue.reserve(asked("r3"))
    assert refused.value.is_reserved
    assert not large.done(), "the other one is refused at once"
    ledger.book.settle(settle("r1", prompt_tokens=20, completion_tokens=0))
    large.cancel()
    assert await small == Granted(output_tokens=10)
    assert queue.num_waiting == 0


@each_case("num_waiting", [1, 3])
async def test_waiting_has_an_end(num_waiting: int) -> None:
    queue, ledger = queue_of(wait_s=0.05)
    await queue.reserve(asked("r1"))
    waiting = [queue.reserve(asked(f"w{number}")) for number in range(num_waiting)]
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, QuotaExceededError) and outcome.is_reserved
    assert (queue.num_waiting, ledger.book.held) == (0, {"r1": {1: 300}})


@each_case(
    ("num_waiting", "failure"),
    [(5, LedgerUnavailableError("gone")), (1, ConnectionError("gone")), (0, ConnectionError("no"))],
)
async def test_a_ledger_that_fails_ends_all_waiting(num_waiting: int, failure: Exception) -> None:
    queue, ledger = queue_of()
    if num_waiting:
        await queue.reserve(asked("r1"))
    waiting = await waits(queue, *(asked(f"w{number}") for number in range(num_waiting)))
    num_asked, ledger.failure = ledger.num_asked, failure
    waiting = waiting or [asyncio.create_task(queue.reserve(asked("r2")))]
    queue.freed((1,))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert outcomes == [failure] * len(waiting)
    assert (ledger.num_asked, queue.num_waiting) == (num_asked + len(waiting), 0)


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(-5, 100_000)), max_size=20),
    st.integers(0, 200_000),
)
def test_what_is_reserved_of_a_text(seen: list[tuple[int, int]], bound: int) -> None:
    ratios = PromptRatios()
    for text_bound, num_tokens in seen:
        ratios.observe("tiny", text_bound, num_tokens)
    assert bound / 4 <= ratios.near("tiny", bound) <= bound
    ratios = PromptRatios()
    assert ratios.near("tiny", 363) == 182
    ratios.observe("tiny", 363, 81)
    assert 81 < ratios.near("tiny", 363) < 110
    assert ratios.near("tiny", 40_000) == 20_000, "another size"
    assert ratios.near("other", 363) == 182, "another tokenizer"
