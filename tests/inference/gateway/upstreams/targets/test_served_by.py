"""Which target serves a request: own replicas or an upstream, in the operator's order, and none
outside where the request may not leave the network."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet.catalogue import CatalogueEntry
from inference.protocol.generation import GenerationRequest
from tests.inference.gateway.fake_metering import KEY
from tests.inference.gateway.fake_neuron import FakeNeuron, breaking
from tests.inference.gateway.upstreams.forwarding import PATH, RED_PIXELS, text_of
from tests.inference.gateway.upstreams.targets.targeting import (
    AUTHORIZED,
    BOX,
    CHAT,
    FAR,
    OWN,
    SPEAKS,
    TargetsRig,
    refuses,
)


async def test_own_replicas_come_first_and_the_response_names_who_served(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    rig.offer("own", "box/m")
    assert text_of(await rig.chat()) == OWN
    assert await rig.served_by() == await rig.served_by(stream=True) == "beast"
    rig.offer("box/m", "own")
    answer = await rig.chat()
    assert (text_of(answer), answer.headers["x-helexa-served-by"]) == (FAR, "upstream:box")
    assert [asked.json["model"] for asked in rig.box.asked] == ["m"]
    for path, body in (("/v1/messages", {**CHAT, "max_tokens": 5}), ("/api/chat", CHAT)):
        answer = await rig.client.post(path, body)
        assert answer.headers["x-helexa-served-by"] == "upstream:box"


async def test_own_replicas_that_are_ready_are_taken_and_none_is_loaded_for_it(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
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


async def test_only_text_of_a_whole_model_goes_to_upstreams(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    adapter = CatalogueEntry(name="tuned", source="path:/a", base="tiny")
    rig.catalogue.listed = [rig.offer("box/m", "own"), adapter]
    assert text_of(await rig.chat(model="tuned")) == OWN, "an adapter is beside its base alone"
    neuron.script = breaking("queue_full")
    embedded = await rig.client.post("/v1/embeddings", {"model": "tiny", "input": "a"})
    assert embedded.error["code"] == "queue_full"
    assert (await rig.client.post("/v1/messages/count_tokens", CHAT)).status == 503
    assert not rig.box.asked


async def test_images_and_fields_go_to_a_target_that_takes_them(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    rig.offer("own", "box/m")
    image = {"type": "image_url", "image_url": {"url": RED_PIXELS}}
    parts = [{"type": "text", "text": "look"}, image]
    assert text_of(await rig.chat(messages=[{"role": "user", "content": parts}])) == FAR
    assert rig.box.asked[0].json["messages"][0]["content"] == parts
    assert not neuron.frames
    rig.forget()
    rig.offer("box/m", "own")
    assert text_of(await rig.chat(guided_regex="a+")) == OWN
    neuron.script = breaking("queue_full")
    busy = await rig.chat(guided_regex="a+")
    assert (busy.status, busy.error["code"]) == (503, "queue_full")
    rig.offer("box/m", "cloud/m", **BOX)
    refused = await rig.chat(guided_regex="a+")
    assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
    assert not rig.box.asked


async def test_defaults_hold_where_there_is_a_word_for_them(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    defaults = {"repetition_window": 256, "min_p": 0.1, "temperature": 0.5}
    rig.offer("own", "box/m", **defaults)
    assert text_of(await rig.chat()) == OWN
    submitted = neuron.submitted.get_nowait().request
    assert isinstance(submitted, GenerationRequest)
    assert {name: getattr(submitted.sampling, name) for name in defaults} == defaults
    neuron.script = breaking("queue_full")
    assert text_of(await rig.chat()) == FAR
    sent = rig.box.asked[-1].json
    assert (sent["temperature"], sent["min_p"], "repetition_window" in sent) == (0.5, 0.1, False)


async def test_requests_that_must_stay_reach_no_target_outside(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    neuron.script = breaking("queue_full")
    rig.offer("cloud/m", "own", may_leave_network=False)
    answer = await rig.chat()
    assert (answer.status, answer.error["code"]) == (503, "queue_full")
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


async def test_what_passes_through_and_must_stay_reaches_no_target_outside(rig: TargetsRig) -> None:
    rig.offer("cloud/m", "box/m", may_leave_network=False, **SPEAKS)
    assert (await rig.speak()).headers["x-helexa-served-by"] == "upstream:box"
    rig.box.answer = refuses(503)
    assert (await rig.speak()).error["code"] == "upstream_unavailable"
    rig.offer("cloud/m", may_leave_network=False, **{**SPEAKS, "source": "upstream:cloud/m"})
    assert (await rig.speak()).error["code"] == "network_not_allowed"
    assert not rig.cloud.asked


async def test_a_request_that_came_back_is_left_to_own_replicas(
    rig: TargetsRig, neuron: FakeNeuron
) -> None:
    rig.offer("box/m", "own")
    assert text_of(await rig.chat()) == FAR
    headers = {"via": rig.box.asked[0].headers["via"]}
    assert text_of(await rig.client.post(PATH, CHAT, headers=headers)) == OWN
    assert len(rig.box.asked) == 1
