"""How a server as a process ends: its drain, a second signal, a port in use. A large form goes
through it to its upstream, and is never whole in its memory."""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from fleet import services
from helexa_site.program import REPOSITORY_DIR
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from metering.actor import COMMAND
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts, paris
from tests.inference.gateway.servers.running_server import (
    CHAT,
    MODEL,
    QUESTION,
    RunningServer,
    accepts_connections,
    command,
    gateway_environment,
    served_by,
    start,
)
from tests.inference.gateway.upstreams.passing import FORM, TRANSCRIPTIONS, form, part
from tests.migrated_database import MakeSqlite

pytestmark = pytest.mark.slow


@asynccontextmanager
async def draining(
    environment: dict[str, str], neuron: FakeNeuron, log: Path
) -> AsyncIterator[tuple[RunningServer, httpx.Response]]:
    """A server that got SIGTERM and has a stream open. It must end with 0."""
    running = await asyncio.to_thread(start, environment, log)
    body = {"model": MODEL, "messages": QUESTION, "stream": True}
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


pytestmark = pytest.mark.slow

MIB = 1024 * 1024
UPLOAD_BYTES = 60 * MIB
MAX_GROWTH_BYTES = 20 * MIB
"""A third of the upload: buffers and what a busy allocator keeps."""
ANSWER = b'{"text": "hi"}'


@dataclass
class Received:
    """An upstream that keeps only a digest of what it is sent."""

    port: int = 0
    digests: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        sizes = re.findall(r"content-length: (\d+)", head)
        boundary = re.findall(r"boundary=(\w+)", head)[0].encode()
        before = await reader.readuntil(b"\r\n\r\n")  # the file is the first part
        left = int(sizes[0]) - len(before)
        digest, held = hashlib.sha256(), b""
        while left:
            part = await reader.read(min(left, 65536))
            left -= len(part)
            window = held + part
            at = window.find(b"\r\n--" + boundary)
            if at >= 0:
                digest.update(window[:at])
                while left:
                    left -= len(await reader.read(left))
                break
            held = window[-200:]
            digest.update(window[:-200])
        self.digests.append(digest.hexdigest())
        length = f"content-length: {len(ANSWER)}"
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{length}\r\n\r\n".encode()
        )
        writer.write(ANSWER)
        await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def received() -> AsyncIterator[Received]:
    made = Received()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
def server(
    received: Received, redis_server_url: str, make_sqlite: MakeSqlite, tmp_path: Path
) -> Iterator[RunningServer]:
    def offer() -> None:
        url = f"http://127.0.0.1:{received.port}/v1"
        services.upstream_create(actor=COMMAND, name="box", url=url)
        services.catalogue_model_create(
            actor=COMMAND, name="whisper", source="upstream:box/w", task="transcription"
        )

    data_dir = make_sqlite(offer).parent
    env = gateway_environment(data_dir, redis_server_url, max_body_bytes=UPLOAD_BYTES + MIB)
    running = start(env, tmp_path / "server.log")
    yield running
    running.stop()


def peak_bytes(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(found) * 1024


async def upload(server: RunningServer, content: bytes) -> httpx.Response:
    async with server.client() as client:
        body = form(part("file", content, filename="a.mp3"), part("model", b"whisper"))
        return await client.post(TRANSCRIPTIONS, content=body, headers=FORM)


async def test_an_upload_takes_a_bounded_part_of_memory(
    server: RunningServer, received: Received
) -> None:
    small = b"x" * (2 * MIB)  # imports, pools and the first connections
    for _ in range(2):
        assert (await upload(server, small)).content == ANSWER
    before = peak_bytes(server)
    content = hashlib.shake_256(b"audio").digest(UPLOAD_BYTES)
    answer = await upload(server, content)
    assert (answer.status_code, answer.content) == (200, ANSWER)
    assert received.digests[-1] == hashlib.sha256(content).hexdigest()
    assert peak_bytes(server) - before < MAX_GROWTH_BYTES
