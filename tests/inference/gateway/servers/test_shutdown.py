"""How a server as a process ends: its drain, a second signal, a port in use."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from helexa_site.program import REPOSITORY_DIR
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts, paris
from tests.inference.gateway.servers.running_server import (
    CHAT,
    MODEL,
    QUESTION,
    RunningServer,
    accepts_connections,
    command,
    start,
)

pytestmark = pytest.mark.slow


@asynccontextmanager
async def draining(
    environment: dict[str, str], neuron: FakeNeuron, log: Path
) -> AsyncIterator[tuple[RunningServer, httpx.Response]]:
    """A server that got SIGTERM and has a stream open. It must end with 0."""
    await neuron.beat()
    running = await asyncio.to_thread(start, environment, log)
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    try:
        async with running.client() as client, client.stream("POST", CHAT, json=body) as response:
            running.process.send_signal(signal.SIGTERM)
            while accepts_connections(running.port):
                await asyncio.sleep(0.02)
            yield running, response
        assert await asyncio.to_thread(running.process.wait, 60) == 0
    finally:
        running.process.kill()


async def test_daphne_drains(
    environment: dict[str, str], ready: FakeNeuron, tmp_path: Path
) -> None:
    """SIGTERM: open requests finish, new ones are refused, and the process ends with 0."""
    may_end = asyncio.Event()

    async def waits(submit: Submit) -> AsyncIterator[list[Event]]:
        accepted, *rest = [events async for events in paris(submit)]
        yield accepted
        await may_end.wait()
        for events in rest:
            yield events

    ready.script = waits
    async with draining(environment, ready, tmp_path / "log") as (_, response):
        may_end.set()
        answer = await response.aread()
    assert answer.endswith(b"data: [DONE]\n\n") and b" Pari" in answer


async def test_a_second_signal_ends_a_drain_at_once(
    environment: dict[str, str], ready: FakeNeuron, tmp_path: Path
) -> None:
    """The drain alone would last for an hour."""
    ready.script = accepts
    patient = environment | {"HELEXA_DRAIN_SECONDS": "3600"}
    async with draining(patient, ready, tmp_path / "log") as (running, response):
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert b"shutting_down" in await response.aread()


def test_a_port_in_use_is_one_line_and_exit_code_1(environment: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = subprocess.run(
            command(taken.getsockname()[1]),
            cwd=REPOSITORY_DIR,
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 1
    assert b"cannot listen" in run.stderr and b"Traceback" not in run.stderr
