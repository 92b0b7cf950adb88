"""Requests that may not leave the network, and those that came back from it."""

from __future__ import annotations

from typing import Any

from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_metering import KEY, FakeDirectory
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.inference.gateway.upstreams.targets.targeting import (
    AUTHORIZED,
    CHAT,
    FAR,
    OWN,
    PATH,
    chat,
    failing,
    text_of,
)
from tests.servers.fake_upstream import FakeUpstream


async def test_requests_that_must_stay_reach_no_target_outside(
    client: AsgiClient,
    neuron: FakeNeuron,
    offer: Any,
    cloud: FakeUpstream,
    directory: FakeDirectory,
) -> None:
    neuron.script = failing("queue_full")
    offer("cloud/m", "own", may_leave_network=False)
    answer = await chat(client)
    assert (answer.status, answer.error["code"]) == (503, "queue_full")
    offer("cloud/m", "own")
    directory.restrict(KEY, may_leave_network=False)
    answer = await client.post(PATH, CHAT, headers=AUTHORIZED)
    assert (answer.status, answer.error["code"]) == (503, "queue_full")
    offer("cloud/m", source="upstream:cloud/m")
    for path in (PATH, "/v1/messages", "/api/chat"):
        body = CHAT if "api" in path else {**CHAT, "max_tokens": 5}
        assert (await client.post(path, body, headers=AUTHORIZED)).status == 403
    offer("cloud/m when ready", "cloud/m", source="upstream:cloud/m")
    assert (await client.post(PATH, CHAT, headers=AUTHORIZED)).status == 403
    assert not cloud.asked
    assert text_of(await chat(client)) == FAR


async def test_a_request_that_came_back_is_left_to_own_replicas(
    client: AsgiClient, neuron: FakeNeuron, offer: Any, box: FakeUpstream
) -> None:
    offer("box/m", "own")
    assert text_of(await chat(client)) == FAR
    headers = {"via": box.asked[0].headers["via"]}
    answer = await client.post(PATH, CHAT, headers=headers)
    assert text_of(answer) == OWN
    assert len(box.asked) == 1
