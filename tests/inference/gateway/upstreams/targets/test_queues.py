"""Targets that are full, loading or sick: requests spill over, wait, and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fleet.upstreams.entry import UpstreamEntry
from inference.gateway.gateway import Gateway
from inference.gateway.upstreams.links import MAX_FAILURES
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from inference.protocol.heartbeat import ReplicaStatus
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, counting
from tests.inference.gateway.upstreams.targets.targeting import (
    CHAT,
    FAR,
    OWN,
    PARTS,
    PATH,
    answers,
    chat,
    refuses,
    text_of,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire


async def test_a_long_queue_spills_over(client: AsgiClient, neuron: FakeNeuron, offer: Any) -> None:
    offer("own", "box/m when queue_longer_than 2")
    assert text_of(await chat(client)) == OWN, "two wait"
    offer("own", "box/m when queue_longer_than 1")
    assert text_of(await chat(client)) == FAR
    offer("own", "box/m when queue_longer_than 1", "cloud/m when queue_longer_than 0")
    assert text_of(await chat(client)) == FAR
    assert (await chat(client)).headers["x-helexa-served-by"] == "upstream:box"


async def test_a_request_that_waits_for_a_load_goes_elsewhere_and_the_load_continues(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, catalogue: FakeCatalogue, box: FakeUpstream
) -> None:
    neuron.status = None
    await neuron.beat()
    offer("own", "box/m when waiting_longer_than 1", vram_mb=1)
    box.answer = refuses(500)
    waiting = client.open("POST", PATH, CHAT)
    await until(lambda: box.asked)
    assert set(catalogue.loads) == {("tiny", "beast")}
    neuron.status = ReplicaStatus.READY
    await neuron.beat()
    await waiting.finish()
    assert text_of(waiting) == OWN, "it waits for the load again"


async def test_an_engine_gives_a_request_back_when_another_target_is_due(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    async def submitted(**fields: Any) -> float | None:
        assert text_of(await chat(client, **fields)) == OWN
        return neuron.submitted.get_nowait().max_queue_wait_s

    assert await submitted() is None
    offer("own when ready", "box/m")
    assert await submitted() is None, "the model's own limit holds"
    offer("own", "box/m when waiting_longer_than 1")
    assert 0.0 <= (await submitted() or -1.0) <= 1.0
    assert await submitted(n=2) is None, "one choice may have begun"

    async def waits(submit: Submit) -> AsyncIterator[list[Event]]:
        if submit.max_queue_wait_s is None:
            async for events in counting(1)(submit):
                yield events
            return
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        await asyncio.sleep(submit.max_queue_wait_s)
        failure = Failure(code="queue_timeout", message="waited")
        yield [Failed(request_id=submit.request_id, failure=failure)]

    neuron.script = waits
    assert text_of(await chat(client)) == FAR
    box.answer = refuses(500)
    answer = await chat(client)
    assert answer.status == 200, "own replicas have it again, for as long as they may"
    assert len(box.asked) == 2


async def test_full_upstreams_are_passed_over(
    client: AsgiClient, offer: Any, box: FakeUpstream, cloud: FakeUpstream
) -> None:
    may_answer = threading.Event()

    def slow(asked: Asked, wire: Wire) -> None:
        assert may_answer.wait(60)
        wire.stream(PARTS)

    box.answer = slow
    upstreams = (
        UpstreamEntry(name="box", url=box.url, concurrency=1),
        UpstreamEntry(name="cloud", url=cloud.url),
    )
    only = {"source": "upstream:box/m", "target_upstreams": upstreams}
    offer("box/m when ready", "cloud/m", **only)
    first = client.open("POST", PATH, CHAT)
    await until(lambda: box.asked)
    assert (await chat(client)).headers["x-helexa-served-by"] == "upstream:cloud"
    offer("box/m", "cloud/m when waiting_longer_than 1", **only)
    assert (await chat(client)).headers["x-helexa-served-by"] == "upstream:cloud"
    offer("box/m weight 2", "cloud/m weight 2", **only)
    assert (await chat(client)).headers["x-helexa-served-by"] == "upstream:cloud"
    may_answer.set()
    await first.finish()
    assert (await chat(client)).headers["x-helexa-served-by"] == "upstream:box"


async def test_a_sick_upstream_is_left_out_and_tried_again(
    client: AsgiClient,
    gateway: Gateway,
    offer: Any,
    box: FakeUpstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference.gateway.upstreams.links.PROBE_AFTER_S", 0.02)
    box.answer = refuses(503)
    offer("box/m when ready", "cloud/m", source="upstream:box/m")
    for _ in range(MAX_FAILURES + 3):
        assert text_of(await chat(client)) == FAR
    assert sum(asked.method == "POST" for asked in box.asked) == MAX_FAILURES
    box.answer = answers
    await until(lambda: not gateway.upstreams.left_out())
    assert (await chat(client)).headers["x-helexa-served-by"] == "upstream:box"
