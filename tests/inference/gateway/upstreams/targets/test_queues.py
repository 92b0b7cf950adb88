"""Targets that are full or loading: requests spill over, wait, and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import Submit
from inference.protocol.heartbeat import ReplicaStatus
from tests.inference.gateway.fake_neuron import FakeNeuron, counting
from tests.inference.gateway.upstreams.forwarding import text_of
from tests.inference.gateway.upstreams.passing import SPEECH, SPOKEN
from tests.inference.gateway.upstreams.targets.targeting import (
    BOX,
    FAR,
    OWN,
    SPEAKS,
    TargetsRig,
    answers,
    refuses,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, Wire


async def test_a_long_queue_spills_over(rig: TargetsRig, neuron: FakeNeuron) -> None:
    rig.offer("own", "box/m when queue_longer_than 2")
    assert text_of(await rig.chat()) == OWN, "two wait"
    rig.offer("own", "box/m when queue_longer_than 1")
    assert text_of(await rig.chat()) == FAR
    rig.offer("own", "box/m when queue_longer_than 1", "cloud/m when queue_longer_than 0")
    assert await rig.served_by() == "upstream:box"


async def test_a_request_that_waits_for_a_load_goes_elsewhere_and_the_load_continues(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    neuron.status = None
    await neuron.beat()
    rig.offer("own", "box/m when waiting_longer_than 1", vram_mb=1)
    rig.box.answer = refuses(500)
    waiting = rig.open_chat()
    await until(lambda: rig.box.asked)
    assert set(rig.catalogue.loads) == {("tiny", "beast")}
    neuron.status = ReplicaStatus.READY
    await neuron.beat()
    await waiting.finish()
    assert text_of(waiting) == OWN, "it waits for the load again"


async def test_an_engine_gives_a_request_back_when_another_target_is_due(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    async def submitted(**fields: Any) -> float | None:
        assert text_of(await rig.chat(**fields)) == OWN
        return neuron.submitted.get_nowait().max_queue_wait_s

    assert await submitted() is None
    rig.offer("own when ready", "box/m")
    assert await submitted() is None, "the model's own limit holds"
    rig.offer("own", "box/m when waiting_longer_than 1")
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
    assert text_of(await rig.chat()) == FAR
    rig.box.answer = refuses(500)
    answer = await rig.chat()
    assert answer.status == 200, "own replicas have it again, for as long as they may"
    assert len(rig.box.asked) == 2


async def test_full_upstreams_are_passed_over(rig: TargetsRig) -> None:
    may_answer = threading.Event()

    def slow(asked: Asked, wire: Wire) -> None:
        assert may_answer.wait(60)
        answers(asked, wire)

    rig.box.answer = slow
    only = {**BOX, "target_upstreams": rig.upstreams(concurrency=1)}
    rig.offer("box/m when ready", "cloud/m", **only)
    first = rig.open_chat()
    await until(lambda: rig.box.asked)
    assert await rig.served_by() == "upstream:cloud"
    rig.offer("box/m", "cloud/m when waiting_longer_than 1", **only)
    assert await rig.served_by() == "upstream:cloud"
    rig.offer("box/m weight 2", "cloud/m weight 2", **only)
    assert await rig.served_by() == "upstream:cloud"
    may_answer.set()
    await first.finish()
    assert await rig.served_by() == "upstream:box"


async def test_one_that_waits_for_a_place_spills_over_and_may_come_back(rig: TargetsRig) -> None:
    """A target that it left because another was due is no target that failed."""
    rig.directory.budgets = (1,)
    goes_on = threading.Event()

    def waits(asked: Asked, wire: Wire) -> None:
        assert goes_on.wait(60)
        answers(asked, wire)

    def refuses_and_frees(asked: Asked, wire: Wire) -> None:
        goes_on.set()
        wire.json(503, {"error": {"message": "full"}})

    rig.box.answer, rig.cloud.answer = waits, refuses_and_frees
    narrow = rig.upstreams(concurrency=1)
    rig.offer("box/m", "cloud/m when waiting_longer_than 1", **SPEAKS, target_upstreams=narrow)
    first = rig.client.open("POST", SPEECH, {**SPOKEN, "model": "tiny"})
    await until(lambda: rig.box.asked)
    second = await rig.speak()
    assert (second.status, second.headers["x-helexa-served-by"]) == (200, "upstream:box")
    await first.finish()
    assert (len(rig.box.asked), len(rig.cloud.asked)) == (2, 1)
    assert not rig.ledger.held
