"""What one gateway takes on at once, how many connections and for how long, and what each refusal
names."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from inference.descriptors import DescriptorMarks
from inference.gateway.gateway import LifespanConsumer
from inference.gateway.server.clients import ENDLESS, OpenClients
from inference.gateway.server.run import drain
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.bodies import chat_body, responses_body
from tests.inference.gateway.conftest import CHAT, MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

LONG = chat_body(messages=[{"role": "user", "content": "x" * 4000}])


@each_case(
    ("bound", "most", "body"),
    [("max_open_requests", 1, chat_body()), ("max_open_body_bytes", 5000, LONG)],
)
async def test_more_than_is_taken_on_at_once_is_refused_by_name(
    make_client: MakeClient, neuron: FakeNeuron, bound: str, most: int, body: dict[str, Any]
) -> None:
    client = make_client(**{bound: most})
    for _ in range(2):  # a client that leaves before its body is there releases its place
        exchange = client.open("POST", CHAT, parts=[b"x" * 4000, b""])
        exchange.leave()
        await exchange.finish()
    neuron.script = endless
    first = client.open("POST", CHAT, {**body, "stream": True})
    await first.until(b"on and")
    refused = await client.post(CHAT, body)
    assert (refused.status, refused.error["code"]) == (503, "queue_full")
    assert f"HELEXA_{bound.upper()}" in refused.error["message"]
    assert refused.headers["retry-after"]
    first.leave()
    await first.finish()
    assert (await client.post(CHAT, parts=[b"x" * 4000])).status == 400, "there is room again"


async def test_what_waits_on_a_socket_is_bounded_in_bytes(
    make_client: MakeClient, neuron: FakeNeuron
) -> None:
    client = make_client(max_body_bytes=10_000)
    neuron.script = endless
    body = responses_body(type="response.create", store=False, input="y" * 4000)
    async with AsgiSocket(client.application, "/v1/responses") as socket:
        for _ in range(4):
            socket.send_json(body)
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


class Connections:
    """At most two for each address, on a process of 1,024 descriptors, by a clock that is set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.refused: list[str] = []
        self.clients = OpenClients(
            timeouts=ENDLESS,
            max_per_address=2,
            trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"),),
            marks=DescriptorMarks.of_limit(1024),
            on_refused=self.refused.append,
            clock=lambda: self.now_s,
        )

    def codes(self, *hosts: str) -> list[str | None]:
        errors = [self.clients.admit(host, 20) for host in hosts]
        return [None if error is None else error.code for error in errors]


MANY = "too_many_connections"


@each_case(
    ("hosts", "codes"),
    [
        (
            ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "::ffff:192.0.2.1"],
            [None, None, MANY, None, MANY],
        ),
        (
            ["2001:db8::1", "2001:db8::ffff", "2001:db8::2", "2001:db8:0:1::1"],
            [None, None, MANY, None],
        ),
        *(([host] * 5, [None] * 5) for host in ("127.0.0.1", "::1", "10.1.2.3")),
    ],
    ids=["one address", "an IPv6 client's network", "this host", "this host by IPv6", "a proxy"],
)
def test_one_address_has_a_bound_and_others_their_own(
    hosts: list[str], codes: list[str | None]
) -> None:
    connections = Connections()
    assert connections.codes(*hosts) == codes
    for _ in hosts[:3]:
        connections.clients.release(hosts[0])
    assert connections.codes(hosts[0]) == [None]


@each_case(
    ("limit", "refuse_from", "stop_from"),
    [(128, 80, 96), (1024, 832, 896), (20_000, 19_808, 19_872)],
)
def test_descriptors_are_kept_back(limit: int, refuse_from: int, stop_from: int) -> None:
    marks = DescriptorMarks.of_limit(limit)
    assert (marks.refuse_from, marks.stop_from) == (refuse_from, stop_from)


def test_a_connection_in_the_reserve_is_refused_and_logged_once_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connections = Connections()
    assert connections.clients.admit("127.0.0.1", 831) is None
    with caplog.at_level(logging.WARNING):
        for descriptor in (832, *[900] * 100):
            error = connections.clients.admit("127.0.0.1", descriptor)
            assert error is not None
            assert (error.status, error.code, error.retry_after_s) == (503, "overloaded", 2.0)
        connections.now_s = 60.0
        connections.clients.admit("127.0.0.1", 900)
    first, second = (record.getMessage() for record in caplog.records)
    assert "overloaded" in first and "file descriptor 832 of 1024" in first
    assert "and 100 more" in second
    assert connections.refused == ["overloaded"] * 102


class Transport:
    """A connection of this host, by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.fileno = lambda: descriptor
        self.getPeer: Any = lambda: SimpleNamespace(host="127.0.0.1")


def test_no_more_are_accepted_until_one_has_left() -> None:
    clients, seen = Connections().clients, list[str]()
    port: Any = SimpleNamespace(
        stopReading=lambda: seen.append("stop"), startReading=lambda: seen.append("start")
    )
    clients._ports = [port]
    opened = [Transport(number) for number in (895, 896, 897)]
    for transport in opened:
        channel: Any = SimpleNamespace(transport=transport)
        clients.opened(channel)
    assert seen == ["stop"]
    clients.closed(opened[0])
    assert seen == ["stop", "start"]


async def ignored(*_: object) -> None: ...


@each_case("under_daphne", [True, False])
async def test_the_setting_is_how_long_it_waits_for_open_requests(under_daphne: bool) -> None:
    graces_s: list[float] = []

    async def drained(grace_s: float) -> None:
        graces_s.append(grace_s)

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.shutdown"}

    config = SimpleNamespace(drain_s=517.0)
    gateway: Any = SimpleNamespace(config=config, drain=drained, close=lambda: None)
    metrics: Any = SimpleNamespace(stop=ignored)
    lifespan = LifespanConsumer(gateway, metrics)
    if under_daphne:
        closed = asyncio.Event()
        server: Any = SimpleNamespace(stop_listening=lambda: None, close=closed.set)
        await drain(server, lifespan)
        assert closed.is_set()
    else:
        await lifespan({}, receive, ignored)
    assert graces_s == [517.0]
