"""Requests that an upstream serves: forwarded, streamed, in its places and with its key."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from dataclasses import replace

import pytest
from django.conf import settings

from fleet.catalogue import CatalogueEntry
from fleet.upstreams.secret import seal
from inference.gateway.gateway import Gateway
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue, MakeClient
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.forwarding import (
    CHAT,
    HELLO,
    SECRET,
    chat,
    cut_early,
    paused,
    serve,
)
from tests.inference.gateway.waiting import until
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, usage


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


@pytest.mark.usefixtures("far")
async def test_a_client_that_leaves_ends_the_upstreams_work(
    client: AsgiClient, upstream: FakeUpstream, ledger: FakeLedger, gateway: Gateway
) -> None:
    seen: list[bool] = []
    noticed = threading.Event()

    def goes_on(asked: Asked, wire: Wire) -> None:
        wire.begin_stream()
        wire.event(HELLO[1])
        seen.append(wire.wait_for_hang_up())
        noticed.set()

    upstream.answer = goes_on
    exchange = client.open("POST", "/v1/chat/completions", {**CHAT, "stream": True})
    await exchange.until(b"Hel")
    exchange.leave()
    await exchange.finish()
    assert await asyncio.to_thread(noticed.wait, 60)
    assert seen == [True]
    (settled,) = ledger.settled
    assert (settled.outcome, settled.completion_tokens) == ("cancelled", 1)


async def test_usage_that_is_missing_or_impossible_is_estimated_and_marked(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    ledger: FakeLedger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "helexa.requests")
    upstream.answer = lambda asked, wire: wire.stream(HELLO[:4])
    await chat(client, max_tokens=50)
    upstream.answer = lambda asked, wire: wire.stream([*HELLO[:4], usage(10**9, 10**9)])
    await chat(client, max_tokens=50)
    upstream.answer = lambda asked, wire: wire.stream(
        [*HELLO[:4], {"usage": {"prompt_tokens": -1}}]
    )
    await chat(client, max_tokens=50)
    assert [settled.completion_tokens for settled in ledger.settled] == [2, 2, 2]
    asked_bytes = len(json.dumps(CHAT["messages"]))
    for settled in ledger.settled:  # four bytes a token, whatever a template may add
        assert asked_bytes / 6 < settled.prompt_tokens <= asked_bytes / 3
    lines = [record.getMessage() for record in caplog.records if record.name == "helexa.requests"]
    assert [" estimated" in line for line in lines] == [True, True, True]
    upstream.answer = lambda asked, wire: wire.stream(HELLO)
    await chat(client, max_tokens=50)
    assert " estimated" not in caplog.records[-1].getMessage()
    upstream.answer = cut_early
    await chat(client)
    assert " estimated" not in caplog.records[-1].getMessage()


async def test_a_cap_holds_without_a_tokenizer(
    client: AsgiClient,
    upstream: FakeUpstream,
    far: CatalogueEntry,
    ledger: FakeLedger,
    directory: FakeDirectory,
) -> None:
    directory.budgets = (1,)
    ledger.cap_tokens = 1_000
    assert (await chat(client)).status == 200
    (reserved,) = ledger.reserved
    assert reserved.prompt_tokens >= len(json.dumps(CHAT["messages"]))
    assert upstream.asked[0].json["max_tokens"] <= 1_000
    refused = await chat(client, messages=[{"role": "user", "content": "x" * 2_000}])
    assert refused.status == 429
    assert len(upstream.asked) == 1
    assert not ledger.held
