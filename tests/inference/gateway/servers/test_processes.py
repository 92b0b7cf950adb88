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

from benchmarks.ports import free_port
from helexa_site.program import REPOSITORY_DIR
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts, paris
from tests.inference.gateway.servers.conftest import (
    ASKED,
    MODEL,
    RunningServer,
    accepts_connections,
    command,
    served_by,
    start,
)

pytestmark = pytest.mark.slow


@asynccontextmanager
async def draining(
    environment: dict[str, str], neuron: FakeNeuron, log: Path
) -> AsyncIterator[tuple[RunningServer, httpx.Response]]:
    """A server that got SIGTERM and has a stream open. It must end with 0."""
    running = await asyncio.to_thread(start, environment, log)
    body = ASKED | {"stream": True}
    try:
        await served_by(neuron, running)
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
    """SIGTERM: open requests finish, new ones are refused, and the process ends with 0. Until then
    its metrics are scraped at their own port."""
    may_end, port = asyncio.Event(), free_port()

    async def waits(submit: Submit) -> AsyncIterator[list[Event]]:
        async for events in paris(submit):
            yield events
            await may_end.wait()

    ready.script = waits
    scraped = environment | {"HELEXA_METRICS_LISTEN": f"127.0.0.1:{port}"}
    async with draining(scraped, ready, tmp_path / "log") as (_, response):
        metrics = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/metrics")
        may_end.set()
        answer = await response.aread()
    lines = metrics.text.splitlines()
    for line in (
        f'cortex_completion_tokens_total{{model="{MODEL}",node="beast"}} 5.0',
        'helexa_load_jobs{state="pending"} 0.0',
        "helexa_reservations_open 0.0",
        "helexa_requests_open 1.0",
    ):
        assert line in lines, metrics.text
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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = command(taken.getsockname()[1])
        run = subprocess.run(
            words, cwd=REPOSITORY_DIR, env=environment, capture_output=True, timeout=60, check=False
        )
    assert run.returncode == 1
    assert b"cannot listen" in run.stderr and b"Traceback" not in run.stderr
