"""What one gateway takes on at once, and what each refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from inference.gateway.request.admission import Bounds
from inference.wire.errors import ApiError
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.bodies import responses_body
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_requests_at_once(make_client: MakeClient, neuron: FakeNeuron) -> None:
    client = make_client(max_open_requests=1)
    neuron.script = endless
    first = client.open("POST", CHAT, {**BODY, "stream": True})
    await first.until(b"on and")
    refused = await client.post(CHAT, BODY)
    assert (refused.status, refused.error["code"]) == (503, "queue_full")
    assert "HELEXA_MAX_OPEN_REQUESTS" in refused.error["message"]
    assert refused.headers["retry-after"]
    first.leave()
    await first.finish()
    assert (await client.get("/v1/models")).status == 200


async def test_bodies_together(make_client: MakeClient, neuron: FakeNeuron) -> None:
    client = make_client(max_open_body_bytes=5000)
    neuron.script = endless
    long = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 4000}]}
    first = client.open("POST", CHAT, {**long, "stream": True})
    await first.until(b"on and")
    refused = await client.post(CHAT, long)
    assert (refused.status, refused.error["code"]) == (503, "queue_full")
    assert "HELEXA_MAX_OPEN_BODY_BYTES" in refused.error["message"]
    first.leave()
    await first.finish()
    assert (await client.post(CHAT, parts=[b"x" * 4000])).status == 400, "there is room again"


async def test_a_client_that_leaves_before_its_body_is_there_releases_its_place(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(max_open_requests=1, max_open_body_bytes=5000)
    for _ in range(3):
        exchange = client.open("POST", CHAT, parts=[b"x" * 4000, b""])
        exchange.leave()
        await exchange.finish()
    assert (await client.get("/v1/models")).status == 200


async def test_what_waits_on_a_socket_is_bounded_in_bytes(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(max_body_bytes=10_000)
    neuron.script = endless
    async with AsgiSocket(client.application, "/v1/responses") as socket:
        for _ in range(4):
            socket.send_json(
                {"type": "response.create", **responses_body(store=False), "input": "y" * 4000}
            )
        while (message := await socket.message())["type"] != "websocket.close":
            pass
    assert message["code"] == 1009


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("bound", ["max_stored_responses", "max_stored_response_bytes"])
async def test_stored_responses_have_a_quota(
    make_client: MakeClient, neuron: FakeNeuron, bound: str
) -> None:
    client: AsgiClient = make_client(**{bound: 1})
    made = await client.post("/v1/responses", responses_body())
    assert made.status == 200
    refused = await client.post("/v1/responses", responses_body())
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
    assert refused.error["param"] == "store"
    assert (await client.post("/v1/responses", responses_body(store=False))).status == 200
    deleted = await client.open("DELETE", f"/v1/responses/{made.json['id']}").finish()
    assert deleted.status == 200
    assert (await client.post("/v1/responses", responses_body())).status == 200


def test_each_bound_is_counted_back() -> None:
    bounds = Bounds(max_open_requests=2, max_open_body_bytes=10)
    bounds.open_request()
    bounds.take_body(10)
    with pytest.raises(ApiError):
        bounds.take_body(1)
    bounds.close_request(10)
    assert (bounds.num_open_requests, bounds.num_body_bytes) == (0, 0)
