"""What one gateway takes on at once, how many connections and for how long, and what each refusal
names."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.descriptors import DescriptorMarks
from inference.gateway.gateway import LifespanConsumer
from inference.gateway.request.admission import Bounds
from inference.gateway.server.bodies import BODY, FILE_PIECE_BYTES, with_large_bodies
from inference.gateway.server.clients import ENDLESS, OpenClients
from inference.gateway.server.run import drain
from inference.wire.errors import ApiError
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.asgi_socket import AsgiSocket
from tests.inference.gateway.bodies import chat_body, responses_body
from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

CHAT = "/v1/chat/completions"


LONG = chat_body(messages=[{"role": "user", "content": "x" * 4000}])


@each_case(
    ("bound", "most", "body"),
    [("max_open_requests", 1, chat_body()), ("max_open_body_bytes", 5000, LONG)],
)
async def test_more_than_is_taken_on_at_once_is_refused_by_name(
    make_client: MakeClient, neuron: FakeNeuron, bound: str, most: int, body: dict[str, Any]
) -> None:
    client = make_client(**{bound: most})
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


FEW = 20
"""A file descriptor of a process that has plenty."""


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def _connections(clock: Clock | None = None, refused: list[str] | None = None) -> OpenClients:
    return OpenClients(
        timeouts=ENDLESS,
        max_per_address=2,
        trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"),),
        marks=DescriptorMarks.of_limit(1024),
        on_refused=[].append if refused is None else refused.append,
        clock=clock or Clock(),
    )


def _codes(connections: OpenClients, *hosts: str) -> list[str | None]:
    errors = [connections.admit(host, FEW) for host in hosts]
    return [None if error is None else error.code for error in errors]


def test_one_address_has_a_bound_and_others_their_own() -> None:
    connections = _connections()
    codes = _codes(connections, *3 * ["192.0.2.1"], "192.0.2.2", "::ffff:192.0.2.1")
    assert codes == [None, None, "too_many_connections", None, "too_many_connections"]
    for _ in range(3):
        connections.release("192.0.2.1")
    assert _codes(connections, "192.0.2.1") == [None]


def test_an_ipv6_client_has_a_network() -> None:
    hosts = ("2001:db8::1", "2001:db8::ffff", "2001:db8::2", "2001:db8:0:1::1")
    assert _codes(_connections(), *hosts) == [None, None, "too_many_connections", None]


@each_case("host", ["127.0.0.1", "::1", "10.1.2.3"])
def test_this_host_and_trusted_proxies_are_not_counted(host: str) -> None:
    assert _codes(_connections(), *5 * [host]) == 5 * [None]


@each_case(
    ("limit", "refuse_from", "stop_from"),
    [(128, 80, 96), (1024, 832, 896), (20_000, 19_808, 19_872)],
)
def test_descriptors_are_kept_back(limit: int, refuse_from: int, stop_from: int) -> None:
    marks = DescriptorMarks.of_limit(limit)
    assert (marks.refuse_from, marks.stop_from) == (refuse_from, stop_from)


def test_a_connection_in_the_reserve_is_refused_whoever_it_is_of() -> None:
    refused: list[str] = []
    connections = _connections(refused=refused)
    assert connections.admit("127.0.0.1", 831) is None
    error = connections.admit("127.0.0.1", 832)
    assert error is not None
    assert (error.status, error.code, error.retry_after_s) == (503, "overloaded", 2.0)
    assert refused == ["overloaded"]


class Transport:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def getPeer(self) -> Any:  # noqa: N802
        return SimpleNamespace(host="127.0.0.1")

    def fileno(self) -> int:
        return self._descriptor


def test_no_more_are_accepted_until_one_has_left() -> None:
    connections, seen = _connections(), list[str]()
    port: Any = SimpleNamespace(
        stopReading=lambda: seen.append("stop"), startReading=lambda: seen.append("start")
    )
    connections._ports = [port]
    opened = [Transport(descriptor) for descriptor in (895, 896, 897)]
    for transport in opened:
        connections.opened(cast(Any, SimpleNamespace(transport=transport)))
    assert seen == ["stop"]
    connections.closed(opened[0])
    assert seen == ["stop", "start"]


def test_the_log_reports_what_ran_out_and_not_with_every_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    connections = _connections(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            connections.admit("127.0.0.1", 900)
        clock.now_s = 60.0
        connections.admit("127.0.0.1", 900)
    first, second = (record.getMessage() for record in caplog.records)
    assert "overloaded" in first and "file descriptor 900 of 1024" in first
    assert "and 99 more" in second


DRAIN_S = 517.0


class DrainedGateway:
    """Notes how long it may wait for open requests."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(drain_s=DRAIN_S)
        self.graces_s: list[float] = []

    async def drain(self, grace_s: float) -> None:
        self.graces_s.append(grace_s)

    def close(self) -> None: ...


async def under_daphne(gateway: Any) -> None:
    closed = asyncio.Event()
    server: Any = SimpleNamespace(stop_listening=lambda: None, close=closed.set)

    async def stop_metrics() -> None: ...

    metrics: Any = SimpleNamespace(stop=stop_metrics)
    await drain(server, gateway, metrics)
    assert closed.is_set()


async def under_uvicorn(gateway: Any) -> None:
    async def receive() -> dict[str, str]:
        return {"type": "lifespan.shutdown"}

    async def send(_message: dict[str, str]) -> None: ...

    await LifespanConsumer(gateway)({}, receive, send)


@each_case("stop", [under_daphne, under_uvicorn])
async def test_the_setting_is_how_long_it_waits(stop: Any) -> None:
    gateway = DrainedGateway()
    await stop(gateway)
    assert gateway.graces_s == [DRAIN_S]


async def test_pieces_come_from_the_file_and_the_end_from_the_server() -> None:
    content = bytes(range(256)) * (FILE_PIECE_BYTES // 256) + b"end"
    file = io.BytesIO(content)
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    sent.put_nowait({"type": "http.disconnect"})
    received: list[dict[str, Any]] = []

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert BODY not in scope
        while not received or received[-1]["type"] != "http.disconnect":
            received.append(await receive())

    await with_large_bodies(application)({BODY: file}, sent.get, None)
    *pieces, end, left = received
    assert [len(one["body"]) for one in pieces] == [FILE_PIECE_BYTES, 3]
    assert b"".join(one["body"] for one in pieces) == content
    assert all(one["more_body"] for one in pieces)
    assert (end["body"], end["more_body"], left["type"]) == (b"", False, "http.disconnect")
    assert file.closed
