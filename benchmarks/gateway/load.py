"""Clients in a closed loop against one server, as a process of their own.

They do as little as possible, because they share the machine with the server: answers are read as
bytes and their tokens counted. The process gets a ``Load`` as JSON and prints a ``Reading``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from benchmarks.gateway.neuron import WORD
from benchmarks.ports import HOST

PATH = "/v1/chat/completions"
ANSWER_TOKENS = 16
QUESTION = "What is the capital of France?"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
MAX_ANSWER_BYTES = 1 << 20
START_APART_S = 0.002
"""Else the clients' first requests would come as one burst."""
POLL_S = 0.1
ANSWERS_PER_CLIENT = 3
"""In a shorter time the first answers, which come together, would determine the rate."""


class UnexpectedAnswerError(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``request`` is a whole HTTP request; ``seconds`` is the shortest time to measure."""

    port: int
    request: str
    num_clients: int
    num_tokens: int = ANSWER_TOKENS
    warm_up_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    num_requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_request: float


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


async def run(load: Load, cpu_s: Callable[[], float]) -> Reading:
    latencies_s: list[float] = []
    try:
        async with asyncio.TaskGroup() as group:
            clients = []
            for _ in range(load.num_clients):
                clients.append(group.create_task(_ask_on(load, latencies_s)))
                await asyncio.sleep(START_APART_S)
            await _answered(latencies_s, load.num_clients, load.warm_up_s)
            latencies_s.clear()
            began_s, began_cpu_s = time.monotonic(), cpu_s()
            await _answered(latencies_s, ANSWERS_PER_CLIENT * load.num_clients, load.seconds)
            measured_s, used_s = time.monotonic() - began_s, cpu_s() - began_cpu_s
            found_s = latencies_s.copy()
            for client in clients:
                client.cancel()
    except* UnexpectedAnswerError as errors:
        raise errors.exceptions[0] from None
    return Reading(
        num_requests=len(found_s),
        requests_per_s=len(found_s) / measured_s,
        p50_ms=percentile(found_s, 50) * 1000,
        p99_ms=percentile(found_s, 99) * 1000,
        cpu_ms_per_request=used_s / len(found_s) * 1000,
    )


async def _answered(latencies_s: list[float], num_answers: int, seconds: float) -> None:
    await asyncio.sleep(seconds)
    while len(latencies_s) < num_answers:
        await asyncio.sleep(POLL_S)


async def _ask_on(load: Load, latencies_s: list[float]) -> None:
    reader, writer = await asyncio.open_connection(HOST, load.port, limit=MAX_ANSWER_BYTES)
    request = load.request.encode()
    try:
        while True:
            sent_s = time.monotonic()
            writer.write(request)
            body = await _answer(reader)
            if (num_tokens := body.count(WORD.encode())) != load.num_tokens:
                raise UnexpectedAnswerError(
                    f"{num_tokens} tokens came where {load.num_tokens} were asked for: {body!r}"
                )
            latencies_s.append(time.monotonic() - sent_s)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise UnexpectedAnswerError(f"the connection was closed: {error}") from error
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise UnexpectedAnswerError(f"the status is not 200: {head!r}")
    if length := LENGTH.search(head):
        return await reader.readexactly(int(length[1]))
    return await reader.readuntil(b"0\r\n\r\n")  # the last chunk


def main() -> None:
    server = psutil.Process(int(sys.argv[1]))

    def cpu_s() -> float:
        """User and system, of all its threads and its children."""
        times = [one.cpu_times() for one in (server, *server.children(recursive=True))]
        return float(sum(one.user + one.system for one in times))

    reading = asyncio.run(run(Load(**json.loads(sys.argv[2])), cpu_s))
    print(json.dumps(asdict(reading)))


if __name__ == "__main__":
    main()
