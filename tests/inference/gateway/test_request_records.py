"""Every request that reached the gateway is recorded, however it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest_asyncio

from helexa_site.config import Config
from helexa_site.routing import build_application
from inference.gateway.gateway import Gateway
from inference.gateway.request.settle import RequestOutcome
from metering.outcomes import Outcome
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.conftest import FakeCatalogue, not_django
from tests.inference.gateway.fake_metering import KEY, NARROW_KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron, endless

CHAT = "/v1/chat/completions"
BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
BEARER = {"authorization": f"Bearer {KEY}"}


class Records:
    """What the gateway passes on to be recorded."""

    def __init__(self) -> None:
        self.ended: list[RequestOutcome] = []
        self.has_stopped = False
        self.depth = 3
        self.num_dropped = 0

    def start(self) -> None:
        pass

    async def stop(self, timeout_s: float) -> None:
        self.has_stopped = True

    def add(self, ended: RequestOutcome) -> None:
        self.ended.append(ended)

    def only(self) -> RequestOutcome:
        (one,) = self.ended
        return one


@pytest_asyncio.fixture
async def records(
    config: Config, catalogue: FakeCatalogue, directory: FakeDirectory, ledger: FakeLedger
) -> AsyncIterator[tuple[Records, AsgiClient]]:
    made = Records()
    gateway = Gateway(
        replace(config, allow_anonymous=False),
        catalogue,
        directory=directory,
        make_ledger=lambda _id: ledger,
        records=made,
    )
    yield made, AsgiClient(build_application(gateway, django_app=not_django))
    await gateway.drain(0)
    assert made.has_stopped


Recorded = tuple[Records, AsgiClient]


async def test_an_answer(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    answer = await client.post(CHAT, BODY, headers=BEARER)
    one = kept.only()
    assert one.settle.request_id == answer.headers["x-request-id"]
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.ANSWERED, 200, "finished")
    assert (one.model_asked, one.settle.model, one.settle.neuron) == ("gpt-4o", "tiny", "beast")
    assert (one.settle.account, one.settle.key) == ("lab", KEY[:13])
    assert one.queue_ms is not None
    assert 0 <= one.queue_ms <= one.settle.duration_ms


async def test_refusals(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    for headers, body, status, code, account in (
        ({}, BODY, 401, "invalid_api_key", ""),
        ({"authorization": f"Bearer {NARROW_KEY}"}, BODY, 403, "insufficient_scope", "lab"),
        (BEARER, {**BODY, "model": "none"}, 404, "model_not_found", "lab"),
        (BEARER, {**BODY, "n": 0}, 400, "invalid_value", "lab"),
    ):
        answer = await client.post(CHAT, body, headers=headers)
        assert answer.status == status, answer.body
        one = kept.ended.pop()
        assert (one.kind, one.status, one.settle.outcome) == (Outcome.REFUSED, status, code)
        assert one.settle.request_id == answer.headers["x-request-id"]
        assert one.error_message == answer.error["message"]
        assert one.settle.account == account
        assert one.queue_ms is None
    assert kept.ended == []


async def test_a_client_that_leaves(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    neuron.script = endless
    exchange = client.open("POST", CHAT, {**BODY, "stream": True}, headers=BEARER)
    await exchange.until(b"data: ")
    exchange.leave()
    await exchange.finish()
    async with asyncio.timeout(60):
        while not kept.ended:
            await asyncio.sleep(0.01)
    one = kept.only()
    assert (one.kind, one.status, one.settle.outcome) == (Outcome.CANCELLED, 200, "cancelled")


async def test_probes_are_left_out(records: Recorded, neuron: FakeNeuron) -> None:
    kept, client = records
    await client.get("/health")
    await client.get("/ping")
    assert kept.ended == []
