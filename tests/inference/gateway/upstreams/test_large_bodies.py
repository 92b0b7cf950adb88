"""Large requests to upstreams: how much memory they take on their way."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from tests.inference.gateway.conftest import MakeClient
from tests.inference.gateway.upstreams.forwarding import CHAT, HELLO, UpstreamRig
from tests.inference.gateway.upstreams.test_transport import CHUNKED, serving

MB = 1_000_000
READ_BYTES = 64 * 1024
SLACK_BYTES = 6 * MB
"""The memory of pieces on their way to the socket, and of everything else."""


@asynccontextmanager
async def discarding(
    received: list[int], held: list[int], measure: Callable[[], int]
) -> AsyncIterator[int]:
    """An upstream that keeps nothing of a body but its size, and takes a measurement then."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        left = length
        while left:
            left -= len(await reader.read(min(left, READ_BYTES)))
        received.append(length)
        for _ in range(20):  # the sender learns that all is sent
            await asyncio.sleep(0)
        held.append(measure())
        events = b"".join(b"data: %s\n\n" % orjson.dumps(one) for one in HELLO)
        events += b"data: [DONE]\n\n"
        head = CHUNKED.replace(b"OK\r\n", b"OK\r\ncontent-type: text/event-stream\r\n")
        writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events))
        writer.close()

    async with serving(handler) as port:
        yield port


def reset_peak() -> None:
    """Resets the peak of this process's resident memory. What libraries reserve and do not touch is
    not in it."""
    Path("/proc/self/clear_refs").write_text("5")


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_of_a_large_body_there_are_two_copies_at_most(
    rig: UpstreamRig, make_client: MakeClient
) -> None:
    """Beside the body as it came there are two copies at most, and once it is sent the request's
    text and the upstream's body."""
    text = "word " * (60 * MB // 5)
    turns = [{"role": "user", "content": text}]
    body = orjson.dumps({**CHAT, "messages": turns})
    del text, turns
    received: list[int] = []
    held: list[int] = []
    async with discarding(received, held, lambda: status_bytes("VmRSS")) as port:
        rig.serve(url=f"http://127.0.0.1:{port}/v1")
        client = make_client(max_body_bytes=64 * MB)
        await client.post("/v1/chat/completions", CHAT)  # everything is imported
        reset_peak()
        before = status_bytes("VmRSS")
        answer = await client.post("/v1/chat/completions", parts=[body])
        taken = status_bytes("VmHWM") - before
    assert answer.status == 200, answer.body[:500]
    assert received[-1] >= 60 * MB
    assert taken <= 3 * len(body) + SLACK_BYTES
    assert held[-1] - before <= 2 * len(body) + SLACK_BYTES


async def test_of_a_prompt_of_100_000_tokens_there_are_two_copies_while_it_is_answered(
    rig: UpstreamRig, make_client: MakeClient
) -> None:
    """The request's text and the upstream's body. That is too little to show in this process's
    resident memory, so allocations of its size are counted."""
    body = orjson.dumps({**CHAT, "messages": [{"role": "user", "content": "word " * 80_000}]})
    num_copies: list[int] = []

    def copies() -> int:
        traces = tracemalloc.take_snapshot().traces
        return sum(trace.size >= len(body) // 2 for trace in traces)

    tracemalloc.start()
    try:
        async with discarding([], num_copies, copies) as port:
            rig.serve(url=f"http://127.0.0.1:{port}/v1")
            answer = await make_client(max_body_bytes=MB).post("/v1/chat/completions", parts=[body])
    finally:
        tracemalloc.stop()
    assert answer.status == 200, answer.body[:500]
    assert num_copies == [2]
