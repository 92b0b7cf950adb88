"""Fixtures of tests whose Redis stops, dies and comes back: a gateway that notices quickly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from helexa_site.config import Config
from inference.gateway import gateway
from inference.gateway.redis import event_reader
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.bodies import chat_body
from tests.inference.gateway.fake_neuron import FakeNeuron
from tests.servers.private_redis import MortalRedis, mortal_redis

COMMAND_TIMEOUT_S = 0.3


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    run_dir: Path = tmp_path_factory.mktemp("r")
    with mortal_redis(run_dir) as server:
        yield server


@pytest.fixture
def redis_url(mortal: MortalRedis) -> str:
    return mortal.url


@pytest_asyncio.fixture
async def begun(client: AsgiClient, neuron: FakeNeuron) -> FakeNeuron:
    """The gateway has served a request: from then on a Redis that pauses is waited for, which
    its first request is refused for."""
    async with asyncio.timeout(60):
        while (await client.post("/v1/chat/completions", chat_body())).status != 200:
            await asyncio.sleep(0.05)
    while not neuron.submitted.empty():
        neuron.submitted.get_nowait()
    neuron.frames.clear()
    return neuron


@pytest.fixture
def stall_limit_s() -> int:
    """Overridden where a stall is to be over it."""
    return 30


@pytest.fixture
def config(config: Config, stall_limit_s: int, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(gateway, "COMMAND_TIMEOUT_S", COMMAND_TIMEOUT_S)
    monkeypatch.setattr(gateway, "READ_TIMEOUT_S", COMMAND_TIMEOUT_S)
    monkeypatch.setattr(event_reader, "BLOCK_MS", int(1000 * COMMAND_TIMEOUT_S / 2))
    return replace(config, redis_stall_s=stall_limit_s)
