"""Requests that an upstream serves: forwarded, streamed, in its places and with its key."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from django.conf import settings

from fleet.catalogue import CatalogueEntry
from fleet.upstreams.secret import seal
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import FakeLedger
from tests.inference.gateway.upstreams.forwarding import CHAT, HELLO, SECRET, chat, paused, serve
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire


async def test_a_chat_is_forwarded_and_billed(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, ledger: FakeLedger
) -> None:
    answer = await chat(client, temperature=0.5, max_tokens=9, stop=["x"], user="ann")
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    assert answer.json["usage"]["prompt_tokens"] == 7
    (asked,) = upstream.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    assert asked.json == {
        "model": "org/m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["x"],
    }
    (settled,) = ledger.settled
    assert (settled.neuron, settled.model) == ("upstream:box", "far")
    assert (settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens) == (7, 3, 2)
    assert settled.cost_micro_usd == 7 + 2 * 2


@pytest.mark.usefixtures("far")
async def test_a_stream_is_forwarded_as_it_comes(
    client: AsgiClient, upstream: FakeUpstream
) -> None:
    goes_on = threading.Event()
    upstream.answer = paused(goes_on)
    exchange = client.open(
        "POST",
        "/v1/chat/completions",
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
    )
    await exchange.until(b'"Hel"')
    goes_on.set()
    await exchange.finish()
    *_, last, done = exchange.chunks
    assert (last["usage"]["prompt_tokens"], done) == (7, "[DONE]")


async def test_no_more_than_its_places_are_used(
    make_client: MakeClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    goes_on = threading.Event()
    most = 0
    num_open = 0
    counting = threading.Lock()

    def counted(asked: Asked, wire: Wire) -> None:
        nonlocal most, num_open
        with counting:
            num_open += 1
            most = max(most, num_open)
        assert goes_on.wait(60)
        with counting:
            num_open -= 1
        wire.stream(HELLO)

    upstream.answer = counted
    serve(catalogue, far, concurrency=2)
    client = make_client(max_waiting_requests=3)
    open_ones = [client.open("POST", "/v1/chat/completions", CHAT) for _ in range(6)]
    running = [one.running for one in open_ones]
    await asyncio.wait(running, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [one.error["code"] for one in open_ones if one.running.done()] == ["queue_full"]
    await until(lambda: num_open == 2)
    goes_on.set()
    answers = [await one.finish() for one in open_ones]
    assert sorted(one.status for one in answers) == [200] * 5 + [503]
    assert most == 2


async def test_requests_that_must_stay_never_leave(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    serve(catalogue, far, leaves_network=True)
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):
        answer = await client.post(path, {**CHAT, "max_tokens": 5} if "api" not in path else CHAT)
        assert answer.status == 403
    assert not upstream.asked
    catalogue.listed = [replace(catalogue.listed[0], may_leave_network=True)]
    assert (await chat(client)).status == 200


async def test_another_key_is_used_at_once_and_one_that_cannot_be_read_is_no_answer(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry, catalogue: FakeCatalogue
) -> None:
    await chat(client)
    serve(catalogue, far, sealed_secret=seal("sk-new", settings.SECRET_KEY))
    await chat(client)
    assert upstream.asked[-1].headers["authorization"] == "Bearer sk-new"
    serve(catalogue, far, sealed_secret=seal("sk-new", "another signing key"))
    answer = await chat(client)
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    catalogue.listed = [replace(far, upstream=None)]
    assert (await chat(client)).error["code"] == "upstream_failed"


async def test_connections_are_pooled(
    client: AsgiClient, upstream: FakeUpstream, catalogue: FakeCatalogue, far: CatalogueEntry
) -> None:
    serve(catalogue, far, concurrency=1)  # the next one waits for the connection of the last
    for _ in range(3):
        assert (await chat(client)).status == 200
    assert upstream.num_connections == 1


async def test_an_answer_that_is_not_streamed_is_read_whole(
    client: AsgiClient, upstream: FakeUpstream, far: CatalogueEntry
) -> None:
    whole = {
        "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }
    upstream.answer = lambda asked, wire: wire.json(200, whole)
    answer = await chat(client)
    assert answer.json["choices"][0]["message"]["content"] == "Hello"
    assert answer.json["usage"]["prompt_tokens"] == 7
