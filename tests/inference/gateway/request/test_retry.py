"""A request that no engine has accepted is retried on another replica, within bounds; an accepted
one never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fleet.placement.targets import MAX_ATTEMPTS, may_place_again
from inference.gateway.request import place as placing
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from inference.protocol.keys import heartbeat_key, preparing_key
from tests.cases import each_case
from tests.inference.gateway.asgi_client import Exchange
from tests.inference.gateway.conftest import Rig
from tests.inference.gateway.fake_neuron import (
    FakeNeuron,
    Script,
    breaking,
    paris,
    silent,
)

MARKS = preparing_key("beast")


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
def test_what_is_retried(code: str, is_accepted: bool, num_attempts: int, again: bool) -> None:
    decision = may_place_again(code, is_accepted=is_accepted, num_attempts=num_attempts)
    assert decision == again


async def test_a_neuron_in_its_next_life_gets_it_again(rig: Rig, neuron: FakeNeuron) -> None:
    exchange, first = await submitted(rig, neuron)
    neuron.script = paris
    await restart(neuron)
    answer = await exchange.finish()
    assert answer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert first.request_id == answer.headers["x-request-id"]
    assert second.request_id == f"{first.request_id}.2"
    assert rig.settled.request_id == first.request_id
    assert [begun.request_id for begun in rig.ledger.begun] == 2 * [first.request_id]
    assert first.request_id in await asyncio.wait_for(neuron.cancelled.get(), 60)


def refusing(script: Script, times: int, attempts: list[str]) -> Script:
    """That script at first, then an answer."""

    async def answer(submit: Submit) -> AsyncIterator[list[Event]]:
        attempts.append(submit.request_id)
        async for events in (script if len(attempts) <= times else paris)(submit):
            yield events

    return answer


@each_case(
    ("script", "times", "num_attempts", "code"),
    [
        (breaking("model_not_loaded"), 2, 3, None),
        (breaking("draining"), 99, MAX_ATTEMPTS, "draining"),
        (breaking("recovering", accepts=True), 99, 1, "recovering"),
    ],
    ids=["a replica that is gone", "bounded", "an engine took it"],
)
async def test_attempts(
    rig: Rig, neuron: FakeNeuron, script: Script, times: int, num_attempts: int, code: str | None
) -> None:
    attempts: list[str] = []
    neuron.script = refusing(script, times, attempts)
    answer = await rig.ask()
    assert answer.status == (503 if code else 200)
    assert code is None or answer.error["code"] == code
    assert len(attempts) == len(set(attempts)) == num_attempts


async def submitted(rig: Rig, neuron: FakeNeuron) -> tuple[Exchange, Submit]:
    """A request that its neuron has, and does not answer."""
    neuron.script = silent
    exchange = rig.open()
    return exchange, await asyncio.wait_for(neuron.submitted.get(), 60)


async def restart(neuron: FakeNeuron, *prepared: str) -> None:
    """It died while it prepared those requests, and comes back."""
    if prepared:
        await neuron.client.hset(MARKS, mapping=dict.fromkeys(prepared, neuron.epoch))
    neuron.epoch = f"after {neuron.epoch}"
    neuron.sequence_numbers.clear()
    await neuron.beat()


async def broke_its_worker(exchange: Exchange, neuron: FakeNeuron) -> None:
    await exchange.finish()
    assert (exchange.status, exchange.error["code"]) == (500, "request_broke_worker")
    assert exchange.headers["x-should-retry"] == "false"
    assert "retry-after" not in exchange.headers
    assert neuron.submitted.empty()


@each_case("returns", [True, False])
async def test_what_killed_alone_goes_nowhere(rig: Rig, neuron: FakeNeuron, returns: bool) -> None:
    exchange, submit = await submitted(rig, neuron)
    if returns:
        await restart(neuron, submit.request_id)
    else:
        await neuron.client.hset(MARKS, submit.request_id, neuron.epoch)
        await neuron.client.delete(heartbeat_key("beast"))
    await broke_its_worker(exchange, neuron)


async def test_one_of_several_is_delivered_once_more(rig: Rig, neuron: FakeNeuron) -> None:
    exchange, first = await submitted(rig, neuron)
    await restart(neuron, first.request_id, "somebody else's")
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert (first.num_worker_deaths, second.num_worker_deaths) == (0, 1)
    await restart(neuron, second.request_id, "another's")
    await broke_its_worker(exchange, neuron)


@each_case("marks_without_bound", [False, True])
async def test_what_only_waited(rig: Rig, neuron: FakeNeuron, marks_without_bound: bool) -> None:
    """A neuron that marks without bound is not believed."""
    exchange, submit = await submitted(rig, neuron)
    neuron.script = paris
    if marks_without_bound:
        await neuron.client.hset(MARKS, "huge", "x" * 2_000_000)
    await restart(neuron, submit.request_id if marks_without_bound else "somebody else's")
    assert (await exchange.finish()).status == 200
    second = await asyncio.wait_for(neuron.submitted.get(), 60)
    assert second.num_worker_deaths == 0
    await neuron.client.delete(MARKS)
