"""How a server as a process ends: its drain, a second signal, a port in use."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helexa_site.program import REPOSITORY_DIR
from inference.protocol.events import Accepted, Event
from inference.protocol.generation import Submit
from tests.inference.gateway.fake_neuron import FakeNeuron, paris
from tests.inference.gateway.servers.chats import CHAT, MODEL, QUESTION
from tests.inference.gateway.servers.running_server import accepts_connections, command, start

pytestmark = pytest.mark.slow


async def test_daphne_drains(
    environment: dict[str, str], ready: FakeNeuron, tmp_path: Path
) -> None:
    """SIGTERM: open requests finish, new ones are refused, and the process ends with 0."""
    may_end = asyncio.Event()

    async def waits(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        await may_end.wait()
        async for events in paris(submit):
            if not isinstance(events[0], Accepted):
                yield events

    ready.script = waits
    await ready.beat()
    running = await asyncio.to_thread(start, environment, tmp_path / "log")
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    try:
        async with running.client() as client:
            async with client.stream("POST", CHAT, json=body) as response:
                running.process.send_signal(signal.SIGTERM)
                while accepts_connections(running.port):
                    await asyncio.sleep(0.02)
                may_end.set()
                answer = await response.aread()
        assert answer.endswith(b"data: [DONE]\n\n") and b" Pari" in answer
        assert await asyncio.to_thread(running.process.wait, 60) == 0
    finally:
        running.process.kill()


async def test_a_second_signal_ends_a_drain_at_once(
    environment: dict[str, str], ready: FakeNeuron, tmp_path: Path
) -> None:
    """The drain alone would last for an hour."""

    async def never_ends(submit: Submit) -> AsyncIterator[list[Event]]:
        yield [Accepted(request_id=submit.request_id, prompt_tokens=1)]
        await asyncio.Event().wait()

    ready.script = never_ends
    await ready.beat()
    patient = environment | {"HELEXA_DRAIN_SECONDS": "3600"}
    running = await asyncio.to_thread(start, patient, tmp_path / "log")
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
    try:
        async with running.client() as client:
            async with client.stream("POST", CHAT, json=body) as response:
                running.process.send_signal(signal.SIGTERM)
                while accepts_connections(running.port):
                    await asyncio.sleep(0.02)
                assert running.process.poll() is None
                running.process.send_signal(signal.SIGTERM)
                assert b"shutting_down" in await response.aread()
        assert await asyncio.to_thread(running.process.wait, 60) == 0
    finally:
        running.process.kill()


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
