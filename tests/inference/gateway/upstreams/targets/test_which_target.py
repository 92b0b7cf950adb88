"""Which target serves a request: own replicas or an upstream, in the operator's order; those that
are full or loading spill over, and none outside is reached where a request may not leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from fleet.catalogue import CatalogueEntry
from inference.protocol.events import Accepted, Event, Failed, Failure
from inference.protocol.generation import GenerationRequest, Submit
from inference.protocol.heartbeat import ReplicaStatus
from tests.inference.gateway.bodies import until
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking, counting, paris
from tests.inference.gateway.upstreams.forwarding import PATH, RED_PIXELS, text_of
from tests.inference.gateway.upstreams.passing import SPEECH, SPOKEN
from tests.inference.gateway.upstreams.targets.conftest import (
    AUTHORIZED,
    BOX,
    CHAT,
    FAR,
    OWN,
    SPEAKS,
    TargetsRig,
    answers,
    refuses,
)
from tests.servers.fake_upstream import Asked, Wire

COUNT = "/v1/messages/count_tokens"


async def test_own_replicas_and_who_served(rig: TargetsRig, neuron: FakeNeuron) -> None:
    defaults = {"repetition_window": 256, "min_p": 0.1, "temperature": 0.5}
    rig.offer("own", "box/m", **defaults)
    assert text_of(await rig.chat()) == OWN
    submitted = neuron.submitted.get_nowait().request
    assert isinstance(submitted, GenerationRequest)
    assert {name: getattr(submitted.sampling, name) for name in defaults} == defaults
    assert await rig.served_by() == await rig.served_by(stream=True) == "beast"
    rig.offer("box/m", "own", **defaults)
    answer = await rig.chat()
    assert (text_of(answer), answer.headers["x-helexa-served-by"]) == (FAR, "upstream:box")
    (asked,) = rig.box.asked
    sent = asked.json
    assert (sent["model"], sent["temperature"], sent["min_p"]) == ("m", 0.5, 0.1)
    assert "repetition_window" not in sent
    for path, body in (("/v1/messages", {**CHAT, "max_tokens": 5}), ("/api/chat", CHAT)):
        answer = await rig.client.post(path, body)
        assert answer.headers["x-helexa-served-by"] == "upstream:box"
    for targets, server in (
        (["box/m when queue_longer_than 2"], "beast"),  # two wait
        (["box/m when queue_longer_than 1"], "upstream:box"),
        (["box/m when queue_longer_than 1", "cloud/m when queue_longer_than 0"], "upstream:box"),
    ):
        rig.offer("own", *targets)
        assert await rig.served_by() == server, targets
    # Own replicas when ready.
    rig.offer("own when ready", "box/m")
    assert text_of(await rig.chat()) == OWN
    neuron.status = None
    await neuron.beat()
    async with asyncio.timeout(60):  # the gateway reads heartbeats a few times a second
        while (await rig.client.get("/v1/models/tiny")).json["status"] != "unloaded":
            await asyncio.sleep(0.02)
    assert text_of(await rig.chat()) == FAR
    assert not rig.catalogue.loads
    rig.offer("own when ready")
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (503, "no_target_ready")


async def test_what_a_target_takes(rig: TargetsRig, neuron: FakeNeuron) -> None:
    adapter = CatalogueEntry(name="tuned", source="path:/a", base="tiny")
    rig.catalogue.listed = [rig.offer("box/m", "own"), adapter]
    assert text_of(await rig.chat(model="tuned")) == OWN, "an adapter is beside its base alone"
    assert text_of(await rig.chat(guided_regex="a+")) == OWN
    neuron.script = breaking("queue_full")
    busy = await rig.chat(guided_regex="a+")
    assert (busy.status, busy.error["code"]) == (503, "queue_full")
    for path, body in (("/v1/embeddings", {"model": "tiny", "input": "a"}), (COUNT, CHAT)):
        assert (await rig.client.post(path, body)).status == 503
    assert not rig.box.asked
    image = {"type": "image_url", "image_url": {"url": RED_PIXELS}}
    parts = [{"type": "text", "text": "look"}, image]
    rig.offer("own", "box/m")
    frames = len(neuron.frames)
    assert text_of(await rig.chat(messages=[{"role": "user", "content": parts}])) == FAR
    assert len(neuron.frames) == frames
    (asked,) = rig.box.asked
    assert asked.json["messages"][0]["content"] == parts
    rig.offer("box/m", "cloud/m", **BOX)
    refused = await rig.chat(guided_regex="a+")
    assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
    rig.offer("box/m", "own")
    neuron.script = paris
    headers = {"via": asked.headers["via"]}
    assert text_of(await rig.client.post(PATH, CHAT, headers=headers)) == OWN, "it came back"
    assert rig.box.asked == [asked]


async def test_requests_that_must_stay(rig: TargetsRig, neuron: FakeNeuron) -> None:
    neuron.script = breaking("queue_full")
    rig.offer("cloud/m", "own", may_leave_network=False)
    assert (await rig.chat()).error["code"] == "queue_full"
    rig.offer("cloud/m", "own")
    rig.directory.restrict(KEY, may_leave_network=False)
    answer = await rig.client.post(PATH, CHAT, headers=AUTHORIZED)
    assert (answer.status, answer.error["code"]) == (503, "queue_full")
    only: dict[str, Any] = {"source": "upstream:cloud/m"}
    rig.offer("cloud/m", **only)
    for path in (PATH, "/v1/messages", "/api/chat"):
        body = CHAT if "api" in path else {**CHAT, "max_tokens": 5}
        assert (await rig.client.post(path, body, headers=AUTHORIZED)).status == 403
    rig.offer("cloud/m when ready", "cloud/m", **only)
    assert (await rig.client.post(PATH, CHAT, headers=AUTHORIZED)).status == 403
    assert not rig.cloud.asked
    assert text_of(await rig.chat()) == FAR
    rig.cloud.asked.clear()
    rig.offer("cloud/m", "box/m", may_leave_network=False, **SPEAKS)
    assert (await rig.speak()).headers["x-helexa-served-by"] == "upstream:box"
    rig.box.answer = refuses(503)
    assert (await rig.speak()).error["code"] == "upstream_unavailable"
    rig.offer("cloud/m", may_leave_network=False, **{**SPEAKS, "source": "upstream:cloud/m"})
    assert (await rig.speak()).error["code"] == "network_not_allowed"
    assert not rig.cloud.asked


async def test_who_waits_for_a_load_goes_elsewhere(rig: TargetsRig, neuron: FakeNeuron) -> None:
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


async def test_an_engine_gives_a_request_back(rig: TargetsRig, neuron: FakeNeuron) -> None:
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
