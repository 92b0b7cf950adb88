"""Redis stalls and continues, or is given up; it dies and comes back empty: open requests fail
once, later ones work. How a stall pauses answers is in ``tests/live/failures``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import pytest_asyncio
import redis.asyncio

from helexa_site.config import Config
from inference.gateway import gateway
from inference.gateway.redis import event_reader
from inference.protocol import keys
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.servers.private_redis import MortalRedis, mortal_redis

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("begun")]

COMMAND_TIMEOUT_S = 0.3
STALL_S = 6 * COMMAND_TIMEOUT_S
"""Several commands time out meanwhile."""
MESSAGES = "/v1/messages"
TEXT = "The capital is Paris."


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    with mortal_redis(tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture
def redis_url(mortal: MortalRedis) -> str:
    return mortal.url


@pytest_asyncio.fixture
async def begun(client: AsgiClient, neuron: FakeNeuron) -> FakeNeuron:
    """The gateway has served a request: from then on a Redis that pauses is waited for, which
    its first request is refused for."""
    async with asyncio.timeout(60):
        while (await client.post(CHAT, chat_body())).status != 200:
            await asyncio.sleep(0.05)
    while not neuron.submitted.empty():
        neuron.submitted.get_nowait()
    neuron.frames.clear()
    return neuron


@pytest.fixture
def config(
    config: Config, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """A test in whose name Redis is "given_up" waits less long; Redis may be busy for a second."""
    monkeypatch.setattr(gateway, "COMMAND_TIMEOUT_S", COMMAND_TIMEOUT_S)
    monkeypatch.setattr(gateway, "READ_TIMEOUT_S", COMMAND_TIMEOUT_S)
    for name in ("BLOCK_MS", "IDLE_BLOCK_MS"):
        monkeypatch.setattr(event_reader, name, int(1000 * COMMAND_TIMEOUT_S / 2))
    return replace(config, redis_stall_s=3 if "given_up" in request.node.name else 30)


def text_of(exchange: Exchange) -> str:
    assert exchange.status == 200, exchange.body
    return str(exchange.json["choices"][0]["message"]["content"])


def error_of(exchange: Exchange) -> str:
    """The code of its only error."""
    if exchange.status != 200:
        return str(exchange.error["code"])
    (code,) = (chunk["error"]["code"] for chunk in exchange.chunks if "error" in chunk)
    return str(code)


async def test_keys_that_expired_meanwhile_declare_nobody_dead(
    client: AsgiClient,
    neuron: FakeNeuron,
    mortal: MortalRedis,
    redis_client: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "SETTLING_S", 3600.0)
    neuron.script = endless
    exchange = client.open("POST", CHAT, chat_body(stream=True))
    await exchange.until(b"on and")
    mortal.suspend()
    await asyncio.sleep(STALL_S)
    neuron.script = paris
    late = client.open("POST", CHAT, chat_body())
    # Redis' first act when it continues: the heartbeat has expired.
    expiring = asyncio.create_task(redis_client.delete(keys.heartbeat_key(neuron.name)))
    mortal.resume()
    await expiring
    assert text_of(await late.finish()) == TEXT
    assert not exchange.ended.is_set()
    monkeypatch.setattr(keys, "SETTLING_S", 0.0)
    await neuron.die()
    assert error_of(await exchange.finish()) == "neuron_lost", "it had its time"


async def test_given_up(client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis) -> None:
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
    started_s = time.monotonic()
    for exchange in (*running.values(), submitted):
        await exchange.finish()
    assert time.monotonic() - started_s >= 0.5
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
