"""Which target serves a request: own replicas or an upstream, in the operator's order."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet.catalogue import CatalogueEntry
from inference.protocol.generation import GenerationRequest
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue
from tests.inference.gateway.fake_neuron import FakeNeuron, endless
from tests.inference.gateway.upstreams.forwarding import RED_PIXELS
from tests.inference.gateway.upstreams.targets.targeting import (
    CHAT,
    FAR,
    OWN,
    PATH,
    chat,
    failing,
    text_of,
)
from tests.servers.fake_upstream import FakeUpstream


async def test_own_replicas_come_first_and_the_response_names_who_served(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    offer("own", "box/m")
    answer = await chat(client)
    assert (text_of(answer), answer.headers["x-helexa-served-by"]) == (OWN, "beast")
    streamed = await chat(client, stream=True)
    assert streamed.headers["x-helexa-served-by"] == "beast"
    offer("box/m", "own")
    answer = await chat(client)
    assert (text_of(answer), answer.headers["x-helexa-served-by"]) == (FAR, "upstream:box")
    assert box.asked[0].json["model"] == "m"
    assert len(box.asked) == 1
    for path, body in (("/v1/messages", {**CHAT, "max_tokens": 5}), ("/api/chat", CHAT)):
        answer = await client.post(path, body)
        assert answer.headers["x-helexa-served-by"] == "upstream:box"


async def test_own_replicas_that_are_ready_are_taken_and_none_is_loaded_for_it(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, catalogue: FakeCatalogue
) -> None:
    offer("own when ready", "box/m")
    assert text_of(await chat(client)) == OWN
    neuron.status = None
    await neuron.beat()
    await until_seen(client, "unloaded")
    assert text_of(await chat(client)) == FAR
    assert not catalogue.loads
    offer("own when ready")
    refused = await chat(client)
    assert (refused.status, refused.error["code"]) == (503, "no_target_ready")


async def until_seen(client: AsgiClient, status: str) -> None:
    """The gateway reads heartbeats a few times a second."""
    async with asyncio.timeout(60):
        while (await client.get("/v1/models/tiny")).json["status"] != status:
            await asyncio.sleep(0.02)


async def test_images_go_to_a_target_that_sees_them(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    offer("own", "box/m")
    image = {"type": "image_url", "image_url": {"url": RED_PIXELS}}
    parts = [{"type": "text", "text": "look"}, image]
    answer = await chat(client, messages=[{"role": "user", "content": parts}])
    assert text_of(answer) == FAR
    assert box.asked[0].json["messages"][0]["content"] == parts
    assert not neuron.frames


async def test_only_text_goes_to_upstreams(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    neuron.script = failing("queue_full")
    offer("box/m", "own")
    embedded = await client.post("/v1/embeddings", {"model": "tiny", "input": "a"})
    assert embedded.error["code"] == "queue_full"
    counted = await client.post("/v1/messages/count_tokens", CHAT)
    assert counted.status == 503
    assert not box.asked


async def test_an_adapter_is_beside_its_base_alone(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, catalogue: FakeCatalogue, box: FakeUpstream
) -> None:
    base = offer("box/m", "own")
    adapter = CatalogueEntry(name="tuned", source="path:/a", base="tiny")
    catalogue.listed = [base, adapter]
    assert text_of(await chat(client, model="tuned")) == OWN
    assert not box.asked


async def test_a_field_that_is_not_translated_is_for_own_replicas(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    offer("box/m", "own")
    answer = await chat(client, guided_regex="a+")
    assert text_of(answer) == OWN
    neuron.script = failing("queue_full")
    busy = await chat(client, guided_regex="a+")
    assert (busy.status, busy.error["code"]) == (503, "queue_full")
    offer("box/m", "cloud/m", source="upstream:box/m")
    refused = await chat(client, guided_regex="a+")
    assert (refused.status, refused.error["code"]) == (400, "unsupported_parameter")
    assert not box.asked


async def test_defaults_hold_where_there_is_a_word_for_them(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    defaults = {"repetition_window": 256, "min_p": 0.1, "temperature": 0.5}
    offer("own", "box/m", **defaults)
    assert text_of(await chat(client)) == OWN
    submitted = neuron.submitted.get_nowait().request
    assert isinstance(submitted, GenerationRequest)
    assert {name: getattr(submitted.sampling, name) for name in defaults} == defaults
    neuron.script = failing("queue_full")
    assert text_of(await chat(client)) == FAR
    sent = box.asked[-1].json
    assert (sent["temperature"], sent["min_p"], "repetition_window" in sent) == (0.5, 0.1, False)


async def test_streams_of_own_replicas_are_not_held_back(
    client: AsgiClient, neuron: FakeNeuron, offer: Any
) -> None:
    neuron.script = endless
    offer("own", "box/m")
    exchange = client.open("POST", PATH, {**CHAT, "stream": True})
    await exchange.until(b"on and")
    exchange.leave()
    await exchange.finish()
    assert await neuron.cancelled.get()
