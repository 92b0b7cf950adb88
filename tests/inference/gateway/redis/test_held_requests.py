"""A request unknown to its neuron fails, and a neuron's request without a waiting client is
cancelled."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis.asyncio

from inference.gateway.gateway import Gateway
from inference.gateway.redis.neurons import (
    MISSES_UNTIL_LOST,
    SIGHTINGS_UNTIL_CANCELLED,
    HeldRequestsWatch,
)
from inference.gateway.request.event_stream import RequestStreams
from inference.protocol import keys
from inference.wire.errors import ApiError
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body, open_stream
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts
from tests.inference.gateway.redis.conftest import GATEWAY

FAR_S = 1e9


@dataclass
class Surroundings:
    """The dispatcher and the readers of a watch."""

    cancelled: list[str] = field(default_factory=list)
    read_until_s: float = FAR_S

    def cancel_soon(self, neuron: str, request_id: str) -> None:
        self.cancelled.append(request_id)

    def caught_up_s(self, neuron: str) -> float:
        return self.read_until_s


@pytest.fixture
def beast(redis_client: redis.asyncio.Redis) -> FakeNeuron:
    made = FakeNeuron(redis_client)
    made.epoch = "e"
    return made


def watch_of(
    client: redis.asyncio.Redis, streams: RequestStreams, around: Any
) -> HeldRequestsWatch:
    return HeldRequestsWatch(client, GATEWAY, streams, around, around, lambda: ["beast"])


@pytest.fixture
def around() -> Surroundings:
    return Surroundings()


@pytest.fixture
def watch(
    redis_client: redis.asyncio.Redis, streams: RequestStreams, around: Surroundings
) -> HeldRequestsWatch:
    return watch_of(redis_client, streams, around)


@each_case(
    ("held", "more", "is_lost"),
    [
        ({GATEWAY: ["another"]}, {}, True),
        ({}, {}, True),
        ({GATEWAY: ["r"]}, {}, False),
        ({GATEWAY: []}, {"is_behind": True}, False),
        ({GATEWAY: []}, {"epoch": "f"}, False),
        ({GATEWAY: []}, {"read_until_s": 0.0}, False),
        ({GATEWAY: []}, {"is_submitted": False}, False),
    ],
    ids=[
        *("not in the list", "the gateway is not named", "held", "the list is behind"),
        *("of another epoch", "its last events may still be read", "not sent yet"),
    ],
)
async def test_a_request_that_its_neuron_does_not_know_is_failed(
    redis_client: redis.asyncio.Redis,
    held: dict[str, list[str]],
    more: dict[str, Any],
    is_lost: bool,
) -> None:
    streams, around = RequestStreams(), Surroundings()
    stream = open_stream(streams, "r", "beast")
    stream.is_submitted = more.get("is_submitted", True)
    beast = FakeNeuron(redis_client)
    beast.epoch = more.get("epoch", "e")
    around.read_until_s = more.get("read_until_s", FAR_S)
    watch = watch_of(redis_client, streams, around)
    for _ in range(MISSES_UNTIL_LOST):
        assert not stream.ended
        await beast.hold(held, is_behind=more.get("is_behind", False))
        await watch.look([])
    assert stream.ended is is_lost
    if is_lost:
        with pytest.raises(ApiError) as raised:
            await stream.next_events()
        assert raised.value.code == "request_lost"
    await redis_client.delete(keys.held_key("beast"))


async def test_what_nobody_waits_for_is_cancelled_until_it_is_gone(
    watch: HeldRequestsWatch,
    around: Surroundings,
    beast: FakeNeuron,
    streams: RequestStreams,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = open_stream(streams, "open", "beast")
    for number in range(1, 5):
        await beast.hold({GATEWAY: ["open", "forgotten"]})
        await watch.look(["beast"])
        repeated = max(0, number + 1 - SIGHTINGS_UNTIL_CANCELLED)
        assert around.cancelled == ["forgotten"] * repeated
    await beast.hold({GATEWAY: ["open"]})
    await watch.look(["beast"])
    assert len(around.cancelled) == repeated
    stream.is_submitted = True
    for held in ([], ["open"], []):
        for _ in range(MISSES_UNTIL_LOST - 1):
            await beast.hold({GATEWAY: held})
            for _ in range(3):
                await watch.look(["beast"])
    assert not stream.ended, "a list counts once, and one that has the request begins anew"
    for number in range(5):
        await beast.client.hset(keys.held_key("beast"), GATEWAY, b"junk %d" % number)
        await watch.look(["beast"])
    lines = [one for one in caplog.records if "lists as held" in one.getMessage()]
    assert len(lines) == 1, "a list that is not understood is logged once a minute"


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


async def test_a_gateway_looks_by_itself(
    client: AsgiClient, neuron: FakeNeuron, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.gateway.gateway.LOOK_INTERVAL_S", 0.02)
    monkeypatch.setattr("inference.gateway.redis.event_reader.BLOCK_MS", 20)
    neuron.script = accepts
    exchange = client.open("POST", "/v1/chat/completions", chat_body())
    await asyncio.wait_for(neuron.submitted.get(), 60)

    async def report() -> None:
        while True:
            await neuron.hold({gateway.gateway_id: ["another"]})
            await asyncio.sleep(0.02)

    reporting = asyncio.create_task(report())
    assert await asyncio.wait_for(neuron.cancelled.get(), 60) == "another"
    await exchange.finish()
    reporting.cancel()
    assert (exchange.status, exchange.error["code"]) == (503, "request_lost")
