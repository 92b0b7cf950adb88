"""What requests that an upstream serves cost: its usage, estimates and caps."""

from __future__ import annotations

import asyncio
import json
import logging
import threading

import pytest

from fleet.catalogue import CatalogueEntry
from inference.gateway.gateway import Gateway
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_metering import FakeDirectory, FakeLedger
from tests.inference.gateway.upstreams.forwarding import CHAT, HELLO, chat, cut_early
from tests.servers.fake_upstream import Asked, FakeUpstream, Wire, usage


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
