"""The gateway's benchmark, run small: real servers, and figures that can be true."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from contextlib import contextmanager
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


def bench(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(REPOSITORY_DIR / "scripts" / "bench-gateway"), *arguments, *SMALL],
        cwd=REPOSITORY_DIR,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


@pytest.mark.slow
def test_both_servers_are_measured_streaming_and_whole() -> None:
    results = bench()
    cells = [(row["server"], row["streams"], row["num_clients"]) for row in results]
    assert sorted(cells) == sorted(
        (server, streams, 2) for server in ("daphne", "uvicorn") for streams in (True, False)
    )
    for row in results:
        middle = row["median"]
        assert middle["cpu_ms_per_request"] > 0
        # 16 tokens, 2 ms apart.
        assert 30 <= middle["p50_ms"] <= middle["p99_ms"]
        # Two clients that are never answered sooner than that.
        assert 0 < middle["requests_per_s"] <= 2 / 0.030


@pytest.mark.slow
def test_each_gateway_is_measured_beside_its_upstream() -> None:
    results = bench("--upstream", "--servers", "daphne", "--kinds", "streamed")
    assert [row["server"] for row in results] == ["daphne", "daphne, upstream"]
    for row in results:
        assert row["median"]["num_requests"] >= 6
        assert row["median"]["cpu_ms_per_request"] > 0


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


@pytest.fixture
def without_uvicorn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers that were started, in an environment of a first start."""
    started: list[str] = []

    class Stage:
        authorization = "Bearer none"

        def start_gateway(self, kind: str, **_: object) -> SimpleNamespace:
            started.append(kind)
            return SimpleNamespace(name=kind)

    @contextmanager
    def stage(**_: object):
        yield Stage()

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else 1)
    monkeypatch.setattr(command, "stage", stage)
    monkeypatch.setattr(command, "_run", lambda *_: {})
    return started


def test_a_server_that_is_not_installed_is_left_out_or_refused_by_name(
    without_uvicorn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([])
    assert without_uvicorn == ["daphne"]
    assert "uvicorn is not measured: pip install uvicorn brings it" in capsys.readouterr().err
    for words, why in (
        (["--servers", "uvicorn"], "uvicorn is not installed"),
        (["--beside", "b", "--database-url", "postgresql://h/x"], "a database for each checkout"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        assert ended.value.code == 2
        assert why in capsys.readouterr().err
    assert without_uvicorn == ["daphne"]
