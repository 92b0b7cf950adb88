"""A request unknown to its neuron fails, and a neuron's request without a waiting client is
cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from inference.gateway.gateway import Gateway
from inference.protocol import keys
from inference.protocol.events import Accepted, Delta, Event
from inference.protocol.generation import Submit
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.fake_neuron import FakeNeuron, silent

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks are still further apart than one read of the reader, after which events are
    known."""
    monkeypatch.setattr("inference.gateway.gateway.LOOK_INTERVAL_S", 0.2)
    monkeypatch.setattr("inference.gateway.redis.event_reader.BLOCK_MS", 100)


async def halting(submit: Submit) -> AsyncIterator[list[Event]]:
    """Its last events get lost."""
    yield [Accepted(request_id=submit.request_id, prompt_tokens=3)]
    yield [Delta(request_id=submit.request_id, text="The")]
    await asyncio.Event().wait()


async def report_held(neuron: FakeNeuron, gateway: Gateway, *held: str, **more: Any) -> None:
    """Reports the held requests, until it is cancelled."""
    while True:
        await neuron.hold({gateway.gateway_id: list(held)}, **more)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_its_neuron_does_not_know_is_failed_once(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, stream: bool
) -> None:
    neuron.script = halting
    exchange = client.open("POST", CHAT, chat_body(stream=stream))
    await asyncio.wait_for(neuron.submitted.get(), 60)
    reporting = asyncio.create_task(report_held(neuron, gateway, "another"))
    await exchange.finish()
    reporting.cancel()
    error = exchange.chunks[-1]["error"] if stream else exchange.error
    assert error["code"] == "request_lost"
    assert exchange.status == (200 if stream else 503)


async def test_a_gateway_that_is_not_named_has_nothing_there(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    neuron.script = silent
    exchange = client.open("POST", CHAT, chat_body())
    await asyncio.wait_for(neuron.submitted.get(), 60)

    async def report_nothing() -> None:
        while True:
            await neuron.hold({})
            await asyncio.sleep(0.05)

    reporting = asyncio.create_task(report_nothing())
    await exchange.finish()
    reporting.cancel()
    assert exchange.error["code"] == "request_lost"


@pytest.mark.parametrize("what", ["held", "behind", "old", "nothing"])
async def test_what_is_held_or_may_have_ended_continues(
    client: AsgiClient,
    neuron: FakeNeuron,
    gateway: Gateway,
    what: str,
) -> None:
    neuron.script = silent
    exchange = client.open("POST", CHAT, chat_body())
    submit = await asyncio.wait_for(neuron.submitted.get(), 60)
    reporting = None
    match what:
        case "held":
            reporting = asyncio.create_task(report_held(neuron, gateway, submit.request_id))
        case "behind":
            reporting = asyncio.create_task(report_held(neuron, gateway, is_behind=True))
        case "old":
            await neuron.hold({})
        case "nothing":
            pass
    await asyncio.sleep(2.0)
    assert not exchange.ended.is_set()
    if reporting is not None:
        reporting.cancel()
    exchange.leave()
    await exchange.finish()


async def test_what_nobody_waits_for_is_cancelled_until_it_is_gone(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway
) -> None:
    assert (await client.post(CHAT, chat_body())).status == 200
    reporting = asyncio.create_task(report_held(neuron, gateway, "forgotten"))
    for _ in range(2):
        assert await asyncio.wait_for(neuron.cancelled.get(), 60) == "forgotten"
    reporting.cancel()


async def test_a_list_that_is_not_understood_is_logged_once_a_minute(
    gateway: Gateway, neuron: FakeNeuron, redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It was logged at each look, which is each second."""
    gateway.ensure_started()
    for number in range(5):
        redis_db.hset(keys.held_key(neuron.name), gateway.gateway_id, b"junk %d" % number)
        await gateway.held.look([neuron.name])
    lines = [one for one in caplog.records if "lists as held" in one.getMessage()]
    assert len(lines) == 1


async def test_a_neuron_that_takes_no_frames_fills_no_redis_and_no_log(
    client: AsgiClient,
    gateway: Gateway,
    redis_client: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It listed requests that no gateway had sent, and got a cancellation of them each second."""
    monkeypatch.setattr("inference.gateway.redis.inbox.MAX_INBOX_ENTRIES", 600)
    # Its own looks, which do not know this neuron, would count from the beginning again.
    monkeypatch.setattr("inference.gateway.gateway.LOOK_INTERVAL_S", 3600.0)
    caplog.set_level(logging.INFO)
    evil = FakeNeuron(redis_client, name="evil")
    await client.get("/health")
    for _ in range(6):
        ids = [f"{number}" for number in range(300)]
        await evil.hold({gateway.gateway_id: [*ids, "x" * 1000]})
        await gateway.held.look(["evil"])
        await gateway.dispatcher.close(60)
    frames: Any = await redis_client.xrange(keys.inbox_key("evil"))
    assert 600 <= len(frames) < 600 + 300
    assert all(len(fields[keys.INBOX_FRAME_FIELD]) < 100 for _, fields in frames)
    assert len(caplog.messages) < 20
