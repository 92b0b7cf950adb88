"""One measurement: clients in a closed loop against one server, its CPU time read beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.gateway.processes import HOST, ProcessFailedError, RunningProcess
from helexa_site.program import REPOSITORY_DIR

PATH = "/v1/chat/completions"
ERROR_CHARACTERS = 3000
ANSWER_TOKENS = 16
QUESTION = "What is the capital of France?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The requests of one row of the report."""

    streams: bool
    num_clients: int

    @property
    def name(self) -> str:
        kind = "streamed" if self.streams else "whole"
        return f"{kind}, {self.num_clients} at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    num_requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_request: float


def measure(
    server: RunningProcess,
    cell: Cell,
    *,
    model: str,
    authorization: str,
    warm_up_s: float,
    seconds: float,
) -> Reading:
    """Raises ``ProcessFailedError`` when a client got an incomplete answer."""
    load = {
        "host": HOST,
        "port": server.port,
        "request": http_request(model, streams=cell.streams, authorization=authorization),
        "num_clients": cell.num_clients,
        "num_tokens": ANSWER_TOKENS,
        "warm_up_s": warm_up_s,
        "seconds": seconds,
    }
    command = [sys.executable, "-m", "benchmarks.gateway.load", json.dumps(load)]
    with subprocess.Popen(
        command, cwd=REPOSITORY_DIR, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as clients:
        assert clients.stdout is not None and clients.stderr is not None
        cpu_s = [server.cpu_s() for _ in range(2) if clients.stdout.readline()]
        result_line = clients.stdout.readline()
        if clients.wait() != 0:
            server.check()
            why = clients.stderr.read()[-ERROR_CHARACTERS:]
            raise ProcessFailedError(f"{server.name}, {cell.name}: {why}")
    used_s = cpu_s[1] - cpu_s[0]
    result: dict[str, Any] = json.loads(result_line)
    latencies_s: list[float] = result["latencies_s"]
    return Reading(
        num_requests=len(latencies_s),
        requests_per_s=len(latencies_s) / result["seconds"],
        p50_ms=percentile(latencies_s, 50) * 1000,
        p99_ms=percentile(latencies_s, 99) * 1000,
        cpu_ms_per_request=used_s / len(latencies_s) * 1000,
    )


def http_request(model: str, *, streams: bool, authorization: str) -> str:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": streams,
    }
    text = json.dumps(body)
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Authorization: {authorization}\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    )


def percentile(values: list[float], percent: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median_of(readings: list[Reading]) -> Reading:
    """Field by field, over all their requests."""
    return Reading(
        num_requests=sum(reading.num_requests for reading in readings),
        requests_per_s=median(reading.requests_per_s for reading in readings),
        p50_ms=median(reading.p50_ms for reading in readings),
        p99_ms=median(reading.p99_ms for reading in readings),
        cpu_ms_per_request=median(reading.cpu_ms_per_request for reading in readings),
    )
