"""The gateway's benchmark, run small: real servers, and figures that can be true."""

from __future__ import annotations

import asyncio
import json
import subprocess
from itertools import count
from typing import Any

import pytest

from benchmarks.gateway.load import Load, Reading, UnexpectedAnswerError, http_request, run
from benchmarks.gateway.processes import HOST
from benchmarks.gateway.upstream import serve
from benchmarks.ports import free_port
from helexa_site.program import REPOSITORY_DIR
from tests.cases import each_case

SMALL = ["--rounds", "1", "--seconds", "0.5", "--warm-up", "0.1", "--clients", "2", "--json"]


@pytest.mark.slow
def test_both_servers_are_measured_beside_their_upstream() -> None:
    command = [str(REPOSITORY_DIR / "scripts" / "bench-gateway"), "--upstream", *SMALL]
    printed = subprocess.check_output(command, cwd=REPOSITORY_DIR, text=True)
    results = json.loads(printed)
    cells = {(row["server"], row["streams"], row["num_clients"]) for row in results}
    servers = ("daphne", "daphne, upstream", "uvicorn", "uvicorn, upstream")
    assert cells == {(server, streams, 2) for server in servers for streams in (True, False)}
    for middle in (row["median"] for row in results):
        assert middle["cpu_ms_per_request"] > 0
        # 16 tokens, 2 ms apart, for two clients.
        assert 30 <= middle["p50_ms"] <= middle["p99_ms"]
        assert 0 < middle["requests_per_s"] <= 2 / 0.030


async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    writer.close()


@each_case(
    ("server", "streams", "num_tokens", "reason"),
    [
        (serve, True, 16, None),
        (serve, False, 16, None),
        (serve, False, 15, "16 tokens came where 15 were asked for"),
        (refuse, True, 16, "the status is not 200.*503"),
        (hang_up, True, 16, "the connection was closed"),
    ],
)
def test_clients_count_tokens_and_an_unexpected_answer_ends_the_run(
    server: Any, streams: bool, num_tokens: int, reason: str | None
) -> None:
    request = http_request("any", streams=streams, authorization="Bearer none")
    load = Load(
        port=free_port(),
        request=request,
        num_clients=2,
        num_tokens=num_tokens,
        warm_up_s=0.0,
        seconds=0.1,
    )

    async def measured() -> Reading:
        async with await asyncio.start_server(server, HOST, load.port):
            return await run(load, count(1.0, 0.6).__next__)  # the server uses 0.6 s

    if reason is not None:
        with pytest.raises(UnexpectedAnswerError, match=reason):
            asyncio.run(measured())
        return
    reading = asyncio.run(measured())
    assert reading.num_requests >= 6
    assert 30 <= reading.p50_ms <= reading.p99_ms
    assert 0 < reading.requests_per_s <= 2 / 0.030
    assert reading.cpu_ms_per_request == pytest.approx(600 / reading.num_requests)
