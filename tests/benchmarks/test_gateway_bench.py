"""The gateway's benchmark, run small: real servers, and figures that can be true."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import benchmarks.gateway.__main__ as command
from benchmarks.gateway.load import AnswerCounter, Client, Load, UnexpectedAnswerError, run
from benchmarks.gateway.measure import Reading, median_of, percentile
from benchmarks.gateway.processes import HOST, Processes, ProcessFailedError
from benchmarks.ports import free_port
from helexa_site.program import REPOSITORY_DIR

SMALL = ["--rounds", "1", "--seconds", "0.5", "--warm-up", "0.1", "--clients", "2", "--json"]


@pytest.mark.slow
def test_both_servers_are_measured_beside_their_upstream() -> None:
    command = [str(REPOSITORY_DIR / "scripts" / "bench-gateway"), "--upstream", *SMALL]
    done = subprocess.run(
        command, cwd=REPOSITORY_DIR, check=True, stdout=subprocess.PIPE, text=True
    )
    results = json.loads(done.stdout)
    cells = {(row["server"], row["streams"], row["num_clients"]) for row in results}
    servers = ("daphne", "daphne, upstream", "uvicorn", "uvicorn, upstream")
    assert cells == {(server, streams, 2) for server in servers for streams in (True, False)}
    for row in results:
        middle = row["median"]
        assert middle["cpu_ms_per_request"] > 0
        # 16 tokens, 2 ms apart.
        assert 30 <= middle["p50_ms"] <= middle["p99_ms"]
        # Two clients that are never answered sooner than that.
        assert 0 < middle["requests_per_s"] <= 2 / 0.030


@pytest.fixture
def upstream(tmp_path: Path) -> Any:
    with Processes(tmp_path) as processes:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.gateway.upstream", "--port", str(port)]
        running = processes.start("upstream", command, {}, port=port)
        running.wait_until_listening()
        yield running


def load_of(port: int, body: dict[str, Any], num_tokens: int) -> Load:
    text = json.dumps({"model": "any", **body})
    request = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    return Load(
        host=HOST,
        port=port,
        request=request.encode(),
        num_clients=2,
        num_tokens=num_tokens,
        warm_up_s=0.0,
        seconds=0.1,
    )


@pytest.mark.parametrize("streams", [True, False])
async def test_clients_count_tokens(upstream: Any, streams: bool) -> None:
    body = {"max_tokens": 5, "stream": streams}
    answers = await run(load_of(upstream.port, body, 5))
    assert len(answers.latencies_s) >= 6
    with pytest.raises(UnexpectedAnswerError, match="5 tokens came where 6"):
        await run(load_of(upstream.port, body, 6))


async def test_a_server_that_refuses_ends_the_run() -> None:
    failed = asyncio.get_running_loop().create_future()
    client = Client(load_of(0, {}, 1), AnswerCounter(), failed)
    client.data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    with pytest.raises(UnexpectedAnswerError, match="503"):
        failed.result()


def test_a_process_that_ends_names_the_reason(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        command = [sys.executable, "-c", "raise SystemExit('no luck')"]
        running = processes.start("unlucky", command, {}, port=free_port())
        with pytest.raises(ProcessFailedError, match=r"(?s)exit code 1.*no luck"):
            running.wait_until_listening()


def test_percentiles_and_medians() -> None:
    assert percentile([float(value) for value in range(100)], 99) == 99.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    readings = [
        Reading(
            num_requests=3,
            requests_per_s=rate,
            p50_ms=1.0,
            p99_ms=2.0,
            cpu_ms_per_request=10 / rate,
        )
        for rate in (1.0, 2.0, 5.0)
    ]
    assert median_of(readings).requests_per_s == 2.0
    assert median_of(readings).cpu_ms_per_request == 5.0
    assert median_of(readings).num_requests == 9


class Stage:
    """Notes which servers are started."""

    authorization = "Bearer none"

    def __init__(self) -> None:
        self.started: list[str] = []

    def start_gateway(self, kind: str, **_: object) -> SimpleNamespace:
        self.started.append(kind)
        return SimpleNamespace(name=kind)


def test_a_server_that_is_not_installed_is_left_out_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in an environment of a first start."""
    stage = Stage()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else 1)
    monkeypatch.setattr(command, "stage", lambda **_: nullcontext(stage))
    monkeypatch.setattr(command, "_run", lambda *_: {})
    command.main([])
    assert stage.started == ["daphne"]
    assert "uvicorn is not measured: pip install uvicorn brings it" in capsys.readouterr().err
    for words, why in (
        (["--servers", "uvicorn"], "uvicorn is not installed"),
        (["--beside", "b", "--database-url", "postgresql://h/x"], "a database for each checkout"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        assert ended.value.code == 2
        assert why in capsys.readouterr().err
    assert stage.started == ["daphne"]
