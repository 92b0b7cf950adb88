"""The whole application under Daphne, in a process of its own, over a database that holds the
default model."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from django.conf import settings

from benchmarks.ports import free_port
from fleet.services import default_model_ensure
from helexa_site.program import REPOSITORY_DIR
from inference.protocol import keys
from metering.audit import COMMAND
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, paris
from tests.migrated_database import MakeSqlite

START_TIMEOUT_S = 120.0
MODEL = "smollm2-135m-instruct"
"""The default model."""
MAX_BODY_BYTES = 50_000
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
CREATE = {"type": "response.create", "model": MODEL, "input": "Hi", "store": False}


@dataclass
class RunningServer:
    process: subprocess.Popen[bytes]
    port: int
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.AsyncClient:
        """A patient one: the first page that a process serves imports all of them."""
        return httpx.AsyncClient(base_url=self.url, timeout=60)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def command(port: int) -> list[str]:
    code = (
        "import django; django.setup();"
        "from django.core.management import call_command;"
        f"call_command('gateway', '--port', '{port}')"
    )
    return [sys.executable, "-c", code]


def start(env: dict[str, str], log: Path, *, num_descriptors: int | None = None) -> RunningServer:
    """``num_descriptors``: the limit of its file descriptors, soft and hard."""
    port = free_port()
    words = command(port)
    if num_descriptors is not None:
        words = ["sh", "-c", f'ulimit -n {num_descriptors} && exec "$@"', "sh", *words]
    with log.open("wb") as output:
        process = subprocess.Popen(words, cwd=REPOSITORY_DIR, env=env, stdout=output, stderr=output)
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while not accepts_connections(port):
        assert process.poll() is None and time.monotonic() < give_up_s, log.read_text()
        time.sleep(0.05)
    return RunningServer(process, port, env)


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


async def served_by(neuron: FakeNeuron, server: RunningServer) -> None:
    """Returns once the server's requests are answered by this neuron, whose script stays."""
    await neuron.beat()
    script, neuron.script = neuron.script, paris

    async def is_served(client: httpx.AsyncClient) -> bool:
        try:
            return (await client.post(CHAT, json=ASKED)).status_code == 200
        except httpx.TransportError:  # a server with short deadlines has closed an idle connection
            return False

    async with server.client() as client, asyncio.timeout(60):
        while not await is_served(client):
            await asyncio.sleep(0.05)
    neuron.script = script


@pytest.fixture(scope="module")
def environment(redis_server_url: str, make_sqlite: MakeSqlite) -> dict[str, str]:
    """A database of its own that holds the default model."""
    data_dir = make_sqlite(lambda: default_model_ensure(actor=COMMAND)).parent
    env = os.environ | {
        "HELEXA_DATA_DIR": str(data_dir),
        "REDIS_URL": redis_server_url,
        "HELEXA_LISTEN_HOST": "127.0.0.1",
        "HELEXA_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
        "DJANGO_SETTINGS_MODULE": "helexa_site.settings",
        # Fake neurons show marks of loads that are signed with this process's key.
        "HELEXA_SECRET_KEY": str(settings.SECRET_KEY),
    }
    env.pop("DATABASE_URL", None)
    return env


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: Any) -> Iterator[RunningServer]:
    running = start(environment, tmp_path_factory.mktemp("log") / "server.log")
    yield running
    running.stop()


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """Removes what earlier tests' neurons wrote, except the streams of their events: those are a
    running gateway's, which fails the requests that wait for one when it is gone."""
    with redis.Redis.from_url(redis_server_url) as client:
        kept = set(client.keys(keys.events_key("*", "*")))
        for key in client.keys("helexa:neuron*"):
            if key not in kept:
                client.delete(key)
    return redis_server_url


@pytest.fixture
def ready(neuron: FakeNeuron) -> FakeNeuron:
    neuron.model = MODEL
    return neuron
