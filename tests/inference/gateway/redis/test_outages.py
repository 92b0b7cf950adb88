"""Redis stalls and continues, or is given up: open requests fail once, later ones work. How a stall
pauses answers is in ``tests/live/failures``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from helexa_site.config import Config
from inference.gateway import gateway
from inference.gateway.redis import event_reader
from inference.protocol import keys
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.servers.private_redis import MortalRedis, mortal_redis

pytestmark = pytest.mark.slow
COMMAND_TIMEOUT_S = 0.3
STALL_S = 6 * COMMAND_TIMEOUT_S
"""Several commands time out meanwhile."""
MESSAGES = "/v1/messages"


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture
def redis_url(mortal: MortalRedis) -> str:
    return mortal.url


@pytest.fixture
def config(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in ("COMMAND_TIMEOUT_S", "READ_TIMEOUT_S"):
        monkeypatch.setattr(gateway, name, COMMAND_TIMEOUT_S)
    for name in ("BLOCK_MS", "IDLE_BLOCK_MS"):
        monkeypatch.setattr(event_reader, name, int(1000 * COMMAND_TIMEOUT_S / 2))
    return replace(config, redis_stall_s=5)


def error_of(exchange: Exchange) -> str:
    """The code of its only error."""
    if exchange.status != 200:
        return str(exchange.error["code"])
    (code,) = (chunk["error"]["code"] for chunk in exchange.chunks if "error" in chunk)
    return str(code)


async def is_served(client: AsgiClient) -> None:
    """From its first request on, a gateway waits for a Redis that pauses."""
    async with asyncio.timeout(60):
        while (await client.post(CHAT, chat_body())).status != 200:
            await asyncio.sleep(0.05)


async def test_a_stall_is_waited_for_and_given_up(
    client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await is_served(client)
    while not neuron.submitted.empty():
        neuron.submitted.get_nowait()
    neuron.script = endless
    running = {
        (path, stream): client.open("POST", path, chat_body(stream=stream, max_tokens=1000))
        for path in (CHAT, MESSAGES)
        for stream in (True, False)
    }
    for _ in running:
        await asyncio.wait_for(neuron.submitted.get(), 60)
    for path in (CHAT, MESSAGES):
        await running[path, True].until(b"on and")
    mortal.suspend()
    submitted = client.open("POST", CHAT, chat_body())
    for exchange in (*running.values(), submitted):
        await exchange.finish()
    mortal.resume()
    for exchange in (running[CHAT, False], running[CHAT, True], submitted):
        assert error_of(exchange) == "redis_unavailable"
        assert exchange.status == 200 or int(exchange.headers["retry-after"]) >= 1
    message = running[MESSAGES, False]
    assert (message.status, message.error["details"]["error_code"]) == (503, "redis_unavailable")
    assert running[MESSAGES, True].body.count(b"event: error") == 1
    ids = {exchange.headers["x-request-id"] for exchange in running.values()}
    async with asyncio.timeout(60):
        while ids:
            ids.discard(await neuron.cancelled.get())
    # Keys that expired meanwhile declare nobody dead.
    neuron.script = paris
    await is_served(client)
    monkeypatch.setattr(keys, "SETTLING_S", 3600.0)
    neuron.script = endless
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await exchange.until(b"on and")
    mortal.suspend()
    await asyncio.sleep(STALL_S)
    neuron.script = paris
    late = client.open("POST", CHAT, chat_body())
    # Redis' first act when it continues: the heartbeat has expired.
    expiring = asyncio.create_task(neuron.client.delete(keys.heartbeat_key(neuron.name)))
    mortal.resume()
    await expiring
    assert (await late.finish()).status == 200, late.body
    assert not exchange.ended.is_set()
    monkeypatch.setattr(keys, "SETTLING_S", 0.0)
    await neuron.die()
    assert error_of(await exchange.finish()) == "neuron_lost", "it had its time"
