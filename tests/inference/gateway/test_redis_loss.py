"""Redis dies and comes back: what was in flight fails once, what comes later works."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from helexa_site.bootstrap.redis_server import PrivateRedis, configure_private_redis
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron, endless, paris

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


class MortalRedis:
    def __init__(self, configured: PrivateRedis) -> None:
        self.url = configured.url
        self._command = configured.command
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        give_up_s = time.monotonic() + 15
        with redis.Redis.from_url(self.url) as client:
            while time.monotonic() < give_up_s:
                with contextlib.suppress(redis.RedisError, OSError):
                    client.ping()
                    return
                time.sleep(0.02)
        raise TimeoutError("Redis did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    run_dir: Path = tmp_path_factory.mktemp("r")
    server = MortalRedis(configure_private_redis(run_dir))
    yield server
    server.kill()


@pytest.fixture
def redis_url(mortal: MortalRedis) -> str:
    return mortal.url


@pytest.mark.parametrize("stream", [True, False])
async def test_loss_and_return(
    client: AsgiClient, neuron: FakeNeuron, mortal: MortalRedis, stream: bool
) -> None:
    neuron.script = endless
    exchange = client.open("POST", CHAT, {**BODY, "stream": stream})
    await asyncio.wait_for(neuron.submitted.get(), 10)
    if stream:
        await exchange.until(b"on and")
    neuron.stop()
    neuron.closing = True
    mortal.kill()
    await exchange.finish()
    error = exchange.chunks[-1]["error"] if stream else exchange.error
    assert error["code"] == "redis_unavailable"
    refused = await client.post(CHAT, BODY)
    assert (refused.status, refused.error["code"]) == (503, "redis_unavailable")

    mortal.start()
    neuron.closing = False
    neuron.script = paris
    await neuron.beat()
    serving = asyncio.create_task(neuron.serve())
    async with asyncio.timeout(10):
        while (answer := await client.post(CHAT, BODY)).status != 200:
            await asyncio.sleep(0.1)
    assert answer.json["choices"][0]["message"]["content"] == "The capital is Paris."
    neuron.closing = True
    await serving
