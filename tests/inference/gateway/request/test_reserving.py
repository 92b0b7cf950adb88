"""What a request reserves of its budget before and while it runs, and its refusals for budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inference.gateway.gateway import Gateway
from inference.gateway.request.reserve import ReservationQueue, _refusal
from inference.protocol.heartbeat import ReplicaStatus
from metering.errors import LedgerUnavailableError, QuotaExceededError
from metering.ledger.book import Book
from metering.ledger.entries import Granted, Reserve
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, counting, endless, paris
from tests.inference.gateway.waiting import until
from tests.metering.operations import reserve, settle, state

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
BEARER = {"authorization": f"Bearer {KEY}", "user-agent": "OpenAI/Python 3.1"}


async def test_the_worst_case_is_held_and_narrowed(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    answer = await client.post(CHAT, {**BODY, "max_tokens": 50}, headers=BEARER)
    assert answer.status == 200
    (held,) = ledger.reserved
    assert held.output_tokens == 50
    assert 7 < held.prompt_tokens < 1000
    (narrow,) = ledger.narrowed
    assert (narrow.prompt_tokens, narrow.output_tokens) == (7, 50)
    (entry,) = ledger.settled
    assert entry.budgets == (1,)
    assert ledger.held == {}


async def test_more_than_the_budget_buys_is_refused_with_both_numbers(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    ledger.cap_tokens = 600
    answer = await client.post(CHAT, {**BODY, "max_tokens": 1000}, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
    assert answer.error["type"] == "insufficient_quota"
    assert "600" in answer.error["message"]
    assert "retry-after" not in answer.headers
    assert not ledger.settled and not ledger.held


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
    numbers = {"budget": 1, "unit": "micro_usd", "needed": 2, "left": 0}
    refusal = _refusal(
        QuotaExceededError(
            "It is spent.",
            retry_after_s=retry_after_s,
            is_reserved=is_reserved,
            owner=owner,
            **numbers,  # type: ignore[arg-type]
        )
    )
    assert (refusal.code, refusal.cause) == (code, cause)


async def test_a_reserved_budget_is_waited_for_and_then_refused_for_seconds(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    capped: FakeDirectory,
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger.cap_tokens = 1500
    neuron.script = endless
    named = {**BODY, "max_tokens": 1000}
    exchange = client.open("POST", CHAT, {**named, "stream": True}, headers=BEARER)
    await exchange.until(b"on and")
    monkeypatch.setattr(gateway.accounting.queue, "_wait_s", 0.05)
    refused = await client.post(CHAT, named, headers=BEARER)
    assert (refused.status, refused.error["code"]) == (429, "budget_reserved")
    assert refused.headers["retry-after"] == "1"
    assert "x-should-retry" not in refused.headers
    message = await client.post("/v1/messages", named, headers=BEARER)
    assert (message.status, message.json["error"]["type"]) == (429, "rate_limit_error")

    monkeypatch.setattr(gateway.accounting.queue, "_wait_s", 60.0)
    waiting = client.open("POST", CHAT, named, headers=BEARER)
    await until(lambda: gateway.accounting.queue.num_waiting)
    neuron.script = paris
    exchange.leave()
    await exchange.finish()
    assert (await waiting.finish()).status == 200
    assert ledger.held == {}


async def test_prompts_are_reserved_near_what_their_model_has_counted(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    neuron.script = counting(81)
    for _ in range(2):
        assert (await client.post(CHAT, {**BODY, "max_tokens": 9}, headers=BEARER)).status == 200
    first, second = (reserve.prompt_tokens for reserve in ledger.reserved)
    assert 81 < second < first < 200


@pytest.mark.parametrize("reports_count", [True, False])
async def test_a_prompt_longer_than_reserved_is_reserved_by_its_length(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    capped: FakeDirectory,
    reports_count: bool,
) -> None:
    """Before anything is computed: the reservation is never less than the prompt's tokens. A neuron
    of an earlier version does not report the length: then the sure bound is reserved."""
    neuron.script = counting(250, reports_count=reports_count)
    answer = await client.post(CHAT, {**BODY, "max_tokens": 9}, headers=BEARER)
    assert answer.status == 200
    near, sure = (reserve.prompt_tokens for reserve in ledger.reserved)
    assert near < 250 <= sure
    assert (sure == 250) is reports_count
    submits = [await neuron.submitted.get() for _ in range(2)]
    assert [submit.max_prompt_tokens for submit in submits] == [near, sure]
    (entry,) = ledger.settled
    assert (entry.prompt_tokens, entry.completion_tokens) == (250, 5)
    assert ledger.held == {}


async def test_a_prompt_longer_than_reserved_is_refused_where_the_cap_has_no_room(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    ledger.cap_tokens = 255
    neuron.script = counting(250)
    answer = await client.post(CHAT, {**BODY, "max_tokens": 9}, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
    assert len(ledger.reserved) == 2
    assert sum(entry.prompt_tokens + entry.completion_tokens for entry in ledger.settled) == 0
    assert ledger.held == {}


async def test_a_neuron_that_names_an_impossible_length_is_asked_no_more(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    neuron.script = counting(1_000_000)
    answer = await client.post(CHAT, {**BODY, "max_tokens": 9}, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
    assert len(ledger.reserved) == 1


async def test_a_spent_budget_loads_nothing(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    capped: FakeDirectory,
    catalogue: FakeCatalogue,
) -> None:
    neuron.status = None
    await neuron.beat()
    ledger.cap_tokens = 0
    assert (await client.post(CHAT, BODY, headers=BEARER)).status == 429
    assert catalogue.loads == []


async def test_what_a_cold_request_reserves_only_grows(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    capped: FakeDirectory,
    catalogue: FakeCatalogue,
) -> None:
    """One token of prompt and one of answer while its model is loaded, so that a spent budget loads
    nothing and others' requests run; the worst case when it is placed. Nothing is released in
    between, and nothing is left."""
    neuron.status = None
    await neuron.beat()
    asked = client.open("POST", CHAT, BODY, headers=BEARER)
    await until(lambda: catalogue.loads)
    assert (list(ledger.held.values()), ledger.released) == ([2], [])
    neuron.status = ReplicaStatus.READY
    await neuron.beat()
    assert (await asked.finish()).status == 200
    assert [reserve.prompt_tokens == 1 for reserve in ledger.reserved] == [True, False]
    assert (ledger.released, len(ledger.settled), ledger.held) == ([], 1, {})


async def test_what_a_cold_request_reserved_is_released_when_its_client_leaves(
    client: AsgiClient,
    neuron: FakeNeuron,
    ledger: FakeLedger,
    capped: FakeDirectory,
    catalogue: FakeCatalogue,
) -> None:
    neuron.status = None
    await neuron.beat()
    asked = client.open("POST", CHAT, BODY, headers=BEARER)
    await until(lambda: catalogue.loads)
    asked.leave()
    await asked.finish()
    assert (len(ledger.reserved), len(ledger.released), ledger.held) == (1, 1, {})


async def test_without_the_database_a_cap_cannot_be_kept(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger, capped: FakeDirectory
) -> None:
    ledger.is_away = True
    answer = await client.post(CHAT, BODY, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")
    assert (await client.post(CHAT, BODY)).status == 200, "a caller without a cap is served"


async def test_a_ledger_that_cannot_keep_up_takes_no_more(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    ledger.is_full = True
    answer = await client.post(CHAT, BODY, headers=BEARER)
    assert (answer.status, answer.error["code"]) == (503, "database_unavailable")


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
