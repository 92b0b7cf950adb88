"""What a request reserves of its budget before and while it runs, and its refusals for budgets."""

from __future__ import annotations

from typing import Any

import pytest

from inference.gateway.gateway import Gateway
from inference.gateway.request.reserve import _refusal
from inference.protocol.heartbeat import ReplicaStatus
from metering.errors import QuotaExceededError
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_metering import KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, counting, endless, paris
from tests.inference.gateway.waiting import until

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
