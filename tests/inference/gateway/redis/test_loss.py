"""Redis dies and comes back empty: open requests fail once, later ones work."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis.asyncio

from inference.gateway.gateway import Gateway
from inference.protocol import keys
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris
from tests.inference.gateway.redis.trouble import begun, config, mortal, redis_url, stall_limit_s
from tests.servers.private_redis import MortalRedis

__all__ = ["begun", "config", "mortal", "redis_url", "stall_limit_s"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("begun")]

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PROMPTLY_S = 20.0


async def _begin(client: AsgiClient, neuron: FakeNeuron, *, stream: bool) -> Exchange:
    neuron.script = endless
    exchange = client.open("POST", CHAT, {**BODY, "stream": stream})
    await asyncio.wait_for(neuron.submitted.get(), 60)
    if stream:
        await exchange.until(b"on and")
    neuron.stop()
    neuron.closing = True
    return exchange


@pytest.mark.parametrize("stream", [True, False])
async def test_loss_and_return(
    client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis, stream: bool
) -> None:
    exchange = await _begin(client, neuron, stream=stream)
    mortal.kill()
    mortal.start()
    back_s = time.monotonic()
    await exchange.finish()
    assert time.monotonic() - back_s < PROMPTLY_S, "long before the stall's limit"
    errors = [chunk["error"] for chunk in exchange.chunks if "error" in chunk] if stream else []
    assert [error["code"] for error in errors or [exchange.error]] == ["redis_unavailable"]

    neuron.closing = False
    neuron.script = paris
    await neuron.beat()
    serving = asyncio.create_task(neuron.serve())
    async with asyncio.timeout(60):
        while (answer := await client.post(CHAT, BODY)).status != 200:
            await asyncio.sleep(0.1)
    assert answer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    neuron.closing = True
    await serving


async def test_the_stream_is_made_again_with_its_expiry(
    client: AsgiClient, gateway: Gateway, neuron: FakeNeuron, redis_client: redis.asyncio.Redis
) -> None:
    assert (await client.post(CHAT, BODY)).status == 200
    key = keys.events_key(neuron.name, gateway.gateway_id)
    await redis_client.delete(key)
    async with asyncio.timeout(60):
        while not await redis_client.exists(key):
            await asyncio.sleep(0.05)
    assert await redis_client.ttl(key) > 0
    assert (await client.post(CHAT, BODY)).status == 200


class TestGivenUp:
    @pytest.fixture
    def stall_limit_s(self) -> int:
        return 1

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_redis_that_stays_away_is_given_up(
        self, client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis, stream: bool
    ) -> None:
        exchange = await _begin(client, neuron, stream=stream)
        mortal.kill()
        await exchange.finish()
        error = exchange.chunks[-1]["error"] if stream else exchange.error
        assert error["code"] == "redis_unavailable"
        refused = await client.post(CHAT, BODY)
        assert (refused.status, refused.error["code"]) == (503, "redis_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        mortal.start()
