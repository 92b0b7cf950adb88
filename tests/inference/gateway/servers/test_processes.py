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
from pathlib import Path

import httpx
import pytest

from benchmarks.ports import free_port
from fleet import services
from helexa_site.program import REPOSITORY_DIR
from inference.protocol.events import Event
from inference.protocol.generation import Submit
from metering.actor import COMMAND
from tests.inference.gateway.conftest import CHAT
from tests.inference.gateway.fake_neuron import FakeNeuron, accepts, paris
from tests.inference.gateway.servers.conftest import (
    ASKED,
    MODEL,
    RunningServer,
    accepts_connections,
    command,
    gateway_environment,
    served_by,
    start,
)
from tests.inference.gateway.upstreams.passing import FORM, TRANSCRIPTIONS, form, part
from tests.migrated_database import MakeSqlite
from tests.servers.fake_upstream import FakeUpstream

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


MIB = 1024 * 1024
UPLOAD_BYTES = 60 * MIB
MAX_GROWTH_BYTES = 20 * MIB
"""A third of the upload: buffers and what a busy allocator keeps."""


async def upload(server: RunningServer, content: bytes) -> int:
    """The most memory that the server ever held, once it has passed the file on."""
    async with server.client() as client:
        body = form(part("file", content, filename="a.mp3"), part("model", b"whisper"))
        answer = await client.post(TRANSCRIPTIONS, content=body, headers=FORM)
        assert (answer.status_code, answer.json()) == (200, {"text": "hi"})
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(found) * 1024


@pytest.fixture
def whisper(
    redis_server_url: str, make_sqlite: MakeSqlite, tmp_path: Path
) -> Iterator[tuple[RunningServer, FakeUpstream]]:
    """A server whose only model an upstream serves."""
    with FakeUpstream() as upstream:

        def offer() -> None:
            services.upstream_create(actor=COMMAND, name="box", url=upstream.url)
            services.catalogue_model_create(
                actor=COMMAND, name="whisper", source="upstream:box/w", task="transcription"
            )

        upstream.answer = lambda asked, wire: wire.json(200, {"text": "hi"})
        data_dir = make_sqlite(offer).parent
        env = gateway_environment(data_dir, redis_server_url, max_body_bytes=UPLOAD_BYTES + MIB)
        server = start(env, tmp_path / "server.log")
        yield server, upstream
        server.stop()


async def test_an_upload_takes_a_bounded_part_of_memory(
    whisper: tuple[RunningServer, FakeUpstream],
) -> None:
    server, upstream = whisper
    small = b"x" * (2 * MIB)  # imports, pools and the first connections
    before = max([await upload(server, small) for _ in range(2)])
    content = hashlib.shake_256(b"audio").digest(UPLOAD_BYTES)
    assert await upload(server, content) - before < MAX_GROWTH_BYTES
    assert content in upstream.asked[-1].body
