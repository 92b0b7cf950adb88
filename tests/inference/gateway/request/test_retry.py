"""A request that no engine has accepted is retried on another replica, within bounds; an accepted
one never."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from fleet.placement.targets import MAX_ATTEMPTS, may_place_again
from inference.gateway.request import place as placing
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from inference.protocol.held import broke_worker
from inference.protocol.keys import heartbeat_key, preparing_key
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, paris, silent

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(autouse=True)
def _quick_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "REFUSED_S", 0.01)


@each_case(
    ("code", "is_accepted", "num_attempts", "again"),
    [
        ("neuron_lost", False, 1, True),
        ("neuron_lost", True, 1, False),
        ("neuron_stopping", False, 2, True),
        ("model_not_loaded", False, 1, True),
        ("draining", False, 1, True),
        ("recovering", False, MAX_ATTEMPTS, False),
        ("request_lost", False, 1, False),
        ("events_lost", False, 1, False),
        ("context_length_exceeded", False, 1, False),
        ("queue_full", False, 1, False),
        ("engine_crashed", False, 1, False),
    ],
)
def test_what_is_retried_elsewhere(
    code: str, is_accepted: bool, num_attempts: int, again: bool
) -> None:
    decision = may_place_again(code, is_accepted=is_accepted, num_attempts=num_attempts)
    assert decision == again


async def test_a_neuron_in_its_next_life_gets_the_request_again(
    client: AsgiClient, neuron: FakeNeuron, ledger: FakeLedger
) -> None:
    neuron.script = silent
    exchange = client.open("POST", CHAT, ASK)
    first = await asyncio.wait_for(neuron.submitted.get(), 60)
    neuron.script = paris
    neuron.epoch = "next life"
    neuron.sequence_numbers.clear()
    await neuron.beat()
    await exchange.finish()
    assert exchange.status == 200
    assert exchange.json["choices"][0]["message"]["content"] == "The capital is Paris."
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert first.request_id == exchange.headers["x-request-id"]
    assert second.request_id == f"{first.request_id}.2"
    assert [settled.request_id for settled in ledger.settled] == [first.request_id]
    assert [begun.request_id for begun in ledger.begun] == 2 * [first.request_id]
    assert first.request_id in await asyncio.wait_for(neuron.cancelled.get(), 60)


def refusing(code: str, times: int, attempts: list[str]):
    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        attempts.append(submit.request_id)
        if len(attempts) > times:
            async for events in paris(submit):
                yield events
            return
        failure = Failure(code=code, message="not now")
        yield [Failed(request_id=submit.request_id, failure=failure)]

    return script


async def test_a_replica_that_is_gone_is_not_the_end(
    client: AsgiClient, neuron: FakeNeuron
) -> None:
    attempts: list[str] = []
    neuron.script = refusing("model_not_loaded", 2, attempts)
    answer = await client.post(CHAT, ASK)
    assert answer.status == 200
    assert len(attempts) == 3
    assert len(set(attempts)) == 3


async def test_attempts_are_bounded(client: AsgiClient, neuron: FakeNeuron) -> None:
    attempts: list[str] = []
    neuron.script = refusing("draining", 99, attempts)
    answer = await client.post(CHAT, ASK)
    assert (answer.status, answer.error["code"]) == (503, "draining")
    assert len(attempts) == MAX_ATTEMPTS


async def test_what_an_engine_took_never_runs_twice(client: AsgiClient, neuron: FakeNeuron) -> None:
    attempts: list[str] = []

    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        attempts.append(submit.request_id)
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        failure = Failure(code="recovering", message="crashed")
        yield [Failed(request_id=submit.request_id, failure=failure)]

    neuron.script = script
    answer = await client.post(CHAT, ASK)
    assert (answer.status, answer.error["code"]) == (503, "recovering")
    assert len(attempts) == 1


MARKS = preparing_key("beast")


async def dies_preparing(
    client: AsgiClient, neuron: FakeNeuron, redis_client: redis.asyncio.Redis, *beside: str
) -> tuple[Exchange, Submit]:
    """A request whose neuron dies while it prepares it, and comes back."""
    neuron.script = silent
    exchange = client.open("POST", CHAT, ASK)
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    await die_preparing(neuron, redis_client, submit.request_id, *beside)
    return exchange, submit


async def die_preparing(
    neuron: FakeNeuron, redis_client: redis.asyncio.Redis, *request_ids: str
) -> None:
    await redis_client.hset(MARKS, mapping=dict.fromkeys(request_ids, neuron.epoch))
    neuron.epoch = f"after {neuron.epoch}"
    neuron.sequence_numbers.clear()
    await neuron.beat()


async def test_what_its_neuron_died_of_alone_goes_nowhere_else(
    client: AsgiClient,
    neuron: FakeNeuron,
    redis_client: redis.asyncio.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "helexa.requests"):
        exchange, submit = await dies_preparing(client, neuron, redis_client)
        await exchange.finish()
    assert (exchange.status, exchange.error["code"]) == (500, "request_broke_worker")
    assert exchange.headers["x-should-retry"] == "false"
    assert "retry-after" not in exchange.headers
    assert neuron.submitted.empty()
    (line,) = caplog.messages
    for word in (submit.request_id, "model=tiny", "neuron=beast", "anonymous", "500"):
        assert word in line


async def test_one_of_several_is_delivered_once_more(
    client: AsgiClient, neuron: FakeNeuron, redis_client: redis.asyncio.Redis
) -> None:
    exchange, first = await dies_preparing(client, neuron, redis_client, "somebody else's")
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert (first.num_worker_deaths, second.num_worker_deaths) == (0, 1)
    await die_preparing(neuron, redis_client, second.request_id, "another's")
    await exchange.finish()
    assert (exchange.status, exchange.error["code"]) == (500, "request_broke_worker")
    assert neuron.submitted.empty()


async def test_a_neuron_that_went_away_for_good_counts_as_well(
    client: AsgiClient, neuron: FakeNeuron, redis_client: redis.asyncio.Redis
) -> None:
    neuron.script = silent
    exchange = client.open("POST", CHAT, ASK)
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    await redis_client.hset(MARKS, submit.request_id, neuron.epoch)
    await redis_client.delete(heartbeat_key("beast"))
    await exchange.finish()
    assert (exchange.status, exchange.error["code"]) == (500, "request_broke_worker")


async def test_what_only_waited_there_continues(
    client: AsgiClient, neuron: FakeNeuron, redis_client: redis.asyncio.Redis
) -> None:
    neuron.script = silent
    exchange = client.open("POST", CHAT, ASK)
    await asyncio.wait_for(neuron.submitted.get(), 60)
    neuron.script = paris
    await die_preparing(neuron, redis_client, "somebody else's")
    await exchange.finish()
    assert exchange.status == 200
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert second.num_worker_deaths == 0


async def test_a_neuron_that_marks_without_bound_is_not_believed(
    client: AsgiClient, neuron: FakeNeuron, redis_client: redis.asyncio.Redis
) -> None:
    neuron.script = silent
    exchange = client.open("POST", CHAT, ASK)
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    neuron.script = paris
    await redis_client.hset(MARKS, "huge", "x" * 2_000_000)
    await die_preparing(neuron, redis_client, submit.request_id)
    await exchange.finish()
    assert exchange.status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", ASK | {"max_tokens": 5}),
        ("/v1/responses", {"model": "tiny", "input": "Hi", "store": False}),
        ("/api/chat", ASK | {"stream": False}),
    ],
)
async def test_every_dialect_reports_it_in_its_own_way(
    client: AsgiClient, neuron: FakeNeuron, path: str, body: dict[str, object]
) -> None:
    async def script(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
        yield [Failed(request_id=submit.request_id, failure=broke_worker("the engine"))]

    neuron.script = script
    answer = await client.post(path, body)
    assert answer.status == 500
    assert b"which is not run again" in answer.body
    assert answer.headers["x-should-retry"] == "false"
