"""What one gateway takes on at once, how many connections and for how long, and what each refusal
names; answers of many megabytes: in bounded pieces, at the pace of their own client."""

from __future__ import annotations

import base64
import ipaddress
import math
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from inference.descriptors import DescriptorMarks
from inference.gateway.gateway import LifespanConsumer
from inference.gateway.request import event_stream as streams
from inference.gateway.server.clients import ENDLESS, OpenClients
from inference.gateway.server.http_messages import PIECE_BYTES
from inference.gateway.server.run import drain
from inference.neuron.requests.batches import batches_within
from inference.protocol.events import (
    MAX_BATCH_BYTES,
    ChoiceFinished,
    Delta,
    Embedded,
    Event,
    Finished,
    Tokenized,
    Usage,
)
from inference.protocol.generation import Submit
from tests.cases import each_case
from tests.inference.gateway.asgi_client import AsgiClient, AsgiSocket
from tests.inference.gateway.bodies import chat_body, responses_body, until
from tests.inference.gateway.conftest import CHAT, MakeClient, MakeGateway, client_of
from tests.inference.gateway.fake_neuron import ACCEPTED, FakeNeuron, endless, saying
from tests.inference.gateway.fake_neuron import embeds as embeds_whole

LONG = chat_body(messages=[{"role": "user", "content": "x" * 4000}])
MANY = "too_many_connections"
SHUTDOWN = "lifespan.shutdown"
NUM_INPUTS = 256
WIDTH = 1024
ASK = {"model": "tiny", "input": ["x"] * NUM_INPUTS, "encoding_format": "base64"}
USAGE = Usage(prompt_tokens=NUM_INPUTS, completion_tokens=0)


@each_case(
    ("bound", "most", "body"),
    [("max_open_requests", 1, chat_body()), ("max_open_body_bytes", 5000, LONG)],
)
async def test_more_than_is_taken_on_at_once_is_refused_by_name(
    make_gateway: MakeGateway, neuron: FakeNeuron, bound: str, most: int, body: dict[str, Any]
) -> None:
    gateway = make_gateway(**{bound: most}, max_body_bytes=10_000)
    client = client_of(gateway)
    for _ in range(2):  # a client that leaves before its body is there releases its place
        exchange = client.open("POST", CHAT, parts=[b"x" * 4000, b""])
        exchange.leave()
        await exchange.finish()
    neuron.script = endless
    turn = responses_body(type="response.create", store=False, input="y" * 4000)

    async def is_full() -> None:
        refused = await client.post(CHAT, body)
        assert (refused.status, refused.error["code"]) == (503, "queue_full")
        assert f"HELEXA_{bound.upper()}" in refused.error["message"]
        assert refused.headers["retry-after"]

    first = client.open("POST", CHAT, {**body, "stream": True})
    await first.until(b"on and")
    await is_full()
    first.leave()
    await first.finish()
    async with AsgiSocket(client.application, "/v1/responses") as socket:
        socket.send_json(turn)
        while "delta" not in await socket.event():
            pass
        await is_full()
    await until(lambda: not gateway.bounds.num_open_requests)
    assert (await client.post(CHAT, parts=[b"x" * 4000])).status == 400, "there is room again"
    # What waits on a socket is bounded as well.
    async with AsgiSocket(client.application, "/v1/responses") as socket:
        for _ in range(4):
            socket.send_json(turn)
        while (message := await socket.message())["type"] != "websocket.close":
            pass
    assert message["code"] == 1009


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("bound", ["max_stored_responses", "max_stored_response_bytes"])
async def test_stored_responses(make_client: MakeClient, neuron: FakeNeuron, bound: str) -> None:
    client: AsgiClient = make_client(**{bound: 1})
    made = await client.post("/v1/responses", responses_body())
    refused = await client.post("/v1/responses", responses_body())
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
    assert refused.error["param"] == "store"
    assert (await client.post("/v1/responses", responses_body(store=False))).status == 200
    assert (await client.open("DELETE", f"/v1/responses/{made.json['id']}").finish()).status == 200
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
def test_one_address_has_its_own_bound(hosts: list[str], codes: list[str | None]) -> None:
    connections = Connections()
    assert connections.codes(*hosts) == codes
    for _ in hosts[:3]:
        connections.clients.release(hosts[0])
    assert connections.codes(hosts[0]) == [None]


def test_connections_near_the_limit_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    for limit, *kept_back in ((128, 80, 96), (1024, 832, 896), (20_000, 19_808, 19_872)):
        marks = DescriptorMarks.of_limit(limit)
        assert [marks.refuse_from, marks.stop_from] == kept_back
    connections = Connections()
    assert connections.clients.admit("127.0.0.1", 831) is None
    for descriptor in (832, *[900] * 100):
        error = connections.clients.admit("127.0.0.1", descriptor)
        assert error is not None
        assert (error.status, error.code, error.retry_after_s) == (503, "overloaded", 2.0)
    connections.now_s = 60.0
    connections.clients.admit("127.0.0.1", 900)
    first, second = caplog.messages
    assert "overloaded" in first and "file descriptor 832 of 1024" in first
    assert "and 100 more" in second
    assert connections.refused == ["overloaded"] * 102
    # No more are accepted until one has left.
    clients, seen = Connections().clients, list[str]()
    port: Any = SimpleNamespace(
        stopReading=lambda: seen.append("stop"), startReading=lambda: seen.append("start")
    )
    clients._ports = [port]
    opened = [Mock(**{"fileno.return_value": number}) for number in (895, 896, 897)]
    for transport in opened:
        channel: Any = SimpleNamespace(transport=transport)
        clients.opened(channel)
    assert seen == ["stop"]
    clients.closed(opened[0])
    assert seen == ["stop", "start"]


@each_case("under_daphne", [True, False])
async def test_the_setting_is_how_long_it_waits_for_open_requests(under_daphne: bool) -> None:
    gateway, metrics, receive = Mock(), Mock(), AsyncMock(return_value={"type": SHUTDOWN})
    gateway.config.drain_s, gateway.drain, metrics.stop = 517.0, AsyncMock(), AsyncMock()
    lifespan = LifespanConsumer(gateway, metrics)
    if under_daphne:
        server: Any = Mock()
        await drain(server, lifespan)
        server.close.assert_called_once_with()
    else:
        await lifespan({}, receive, AsyncMock())
    gateway.drain.assert_awaited_once_with(517.0)


VECTORS = [struct.pack(f"<{WIDTH}f", *(n + i / 7 for i in range(WIDTH))) for n in range(NUM_INPUTS)]


ANSWERED = Embedded(request_id="", vectors=VECTORS, usage=USAGE)
embeds = saying([ACCEPTED], *batches_within(MAX_BATCH_BYTES - 4096, [ANSWERED]))
"""Embeds as a neuron sends it."""


async def test_embeddings_come_in_bounded_pieces(client: AsgiClient, neuron: FakeNeuron) -> None:
    neuron.script = embeds
    slow = client.open("POST", "/v1/embeddings", ASK)
    slow.reads.clear()
    answer = await client.post("/v1/embeddings", ASK)
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.json["usage"]["total_tokens"] == NUM_INPUTS
    assert max(answer.piece_sizes) <= PIECE_BYTES
    assert len(answer.piece_sizes) > 20
    assert slow.body == b"" and slow.status == 200
    slow.reads.set()
    for one in (answer, await slow.finish()):
        data = one.json["data"]
        assert [each["index"] for each in data] == list(range(NUM_INPUTS))
        assert [base64.b64decode(each["embedding"]) for each in data] == VECTORS
    answer = await client.post("/api/embed", {"model": "tiny", "input": ["x"] * NUM_INPUTS})
    vector = struct.unpack(f"<{WIDTH}f", VECTORS[7])
    length = math.hypot(*vector)
    assert answer.json["embeddings"][7] == pytest.approx([each / length for each in vector])
    assert answer.json["prompt_eval_count"] == len(answer.json["embeddings"]) == NUM_INPUTS
    assert max(answer.piece_sizes) <= PIECE_BYTES
    neuron.script = embeds_whole(VECTORS[0])
    small = await client.post("/v1/embeddings", {"model": "tiny", "input": "x"})
    assert small.piece_sizes == [int(small.headers["content-length"])] == [len(small.body)]


async def test_events_in_fragments_and_bursts(
    client: AsgiClient, neuron: FakeNeuron, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_ids = list(range(100_000, 250_000))

    async def tokenizes(submit: Submit) -> AsyncIterator[list[Event]]:
        tokenized = Tokenized(request_id=submit.request_id, token_ids=token_ids, context_tokens=9)
        for batch in batches_within(MAX_BATCH_BYTES - 4096, [tokenized]):
            yield batch

    neuron.script = tokenizes
    answer = await client.post("/tokenize", {"model": "tiny", "prompt": "x"})
    assert answer.json["tokens"] == token_ids
    assert max(answer.piece_sizes) <= PIECE_BYTES
    # Many choices in bursts.
    neuron.script = bursts
    ask = {"model": "tiny", "prompt": "x", "n": 128, "max_tokens": 160}
    for stream in (False, True):
        answer = await client.post("/v1/completions", ask | {"stream": stream})
        bodies = answer.chunks[:-1] if stream else [answer.json]
        texts = [choice["text"] for body in bodies for choice in body["choices"]]
        assert (answer.status, len("".join(texts))) == (200, 20 * 1024)
    monkeypatch.setattr(streams, "MAX_QUEUED_EVENTS", 100)
    behind = await client.post("/v1/completions", ask)
    assert (behind.status, behind.error["code"]) == (503, "client_too_slow")


ENDS = [ChoiceFinished(request_id="", index=index, reason="length") for index in range(128)]
BURST = [Delta(request_id="", index=index % 128, text="x") for index in range(1024)]
bursts = saying([ACCEPTED], *[[*BURST]] * 20, [*ENDS, Finished(request_id="", usage=USAGE)])
"""Sends as many events as a stall of seconds leaves of 128 choices, as fast as they can be read."""
