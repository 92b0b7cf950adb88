"""Clients in a closed loop, as a process of their own: each sends its next request when the last
answer is whole.

They share the machine with the server, so they do as little as possible: a socket per client,
requests written as prepared bytes, answers read as bytes and their tokens counted. An unexpected
answer ends the run.

    begin                     warm-up is over
    end                       the time is up
    {"seconds": ..., "latencies_s": [...]}    how long that was, the answers that became whole
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gateway.neuron import WORD

HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
TOKEN = WORD.encode()
START_APART_S = 0.002
"""Between the clients' first requests, so that they do not come as one burst."""


POLL_S = 0.1
ANSWERS_PER_CLIENT = 3
"""The least number of answers a client gets, however slow the server is: in a shorter time the
clients' first answers, which come together, would determine the rate."""


class UnexpectedAnswerError(Exception):
    """A client got another answer than it requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``request`` is a whole HTTP request; ``seconds`` is the shortest time to measure."""

    host: str
    port: int
    request: bytes
    num_clients: int
    num_tokens: int
    warm_up_s: float
    seconds: float


@dataclass(slots=True)
class AnswerCounter:
    num_whole: int = 0
    begin_s: float = float("inf")
    end_s: float = float("inf")
    latencies_s: list[float] = field(default_factory=list)

    def add(self, sent_s: float, whole_s: float) -> None:
        self.num_whole += 1
        if self.begin_s <= whole_s < self.end_s:
            self.latencies_s.append(whole_s - sent_s)


class Client(asyncio.Protocol):
    """One connection. ``failed`` gets the reason why it cannot continue."""

    def __init__(self, load: Load, answers: AnswerCounter, failed: asyncio.Future[None]) -> None:
        self._load = load
        self._answers = answers
        self._failed = failed
        self._answer = bytearray()
        self._end: int | None = None
        """The answer's size in bytes, once the server has sent its length."""
        self._head_end = -1
        self._sent_s = 0.0
        self.stopping = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self) -> None:
        self._answer.clear()
        self._end, self._head_end = None, -1
        self._sent_s = time.monotonic()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._head_end < 0 and not self._read_head():
            return
        if self._is_whole():
            self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.stopping:
            self._fail("the connection was closed")

    def close(self) -> None:
        self.stopping = True
        self._transport.abort()

    def _read_head(self) -> bool:
        self._head_end = self._answer.find(HEAD_END)
        if self._head_end < 0:
            return False
        head = bytes(self._answer[: self._head_end]).lower()
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            self._fail("the status is not 200")
            return False
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
                self._end = self._head_end + len(HEAD_END) + length
        return True

    def _is_whole(self) -> bool:
        if self._end is not None:
            return len(self._answer) >= self._end
        return self._answer.endswith(LAST_CHUNK)

    def _take(self) -> None:
        self._answers.add(self._sent_s, time.monotonic())
        num_tokens = self._answer.count(TOKEN)
        if num_tokens != self._load.num_tokens:
            self._fail(f"{num_tokens} tokens came where {self._load.num_tokens} were asked for")
        elif not self.stopping:
            self.ask()

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            error = UnexpectedAnswerError(f"{why}: {bytes(self._answer[:2000])!r}")
            self._failed.set_exception(error)


async def run(load: Load) -> AnswerCounter:
    """Raises ``UnexpectedAnswerError``."""
    loop = asyncio.get_running_loop()
    answers, failed = AnswerCounter(), loop.create_future()
    clients = []
    for _ in range(load.num_clients):
        _, client = await loop.create_connection(
            lambda: Client(load, answers, failed), load.host, load.port
        )
        clients.append(client)
    for client in clients:
        client.ask()
        await asyncio.sleep(START_APART_S)
    try:
        await _wait(load.warm_up_s, failed)
        while answers.num_whole < load.num_clients:
            await _wait(POLL_S, failed)
        answers.begin_s = time.monotonic()
        print("begin", flush=True)
        await _wait(load.seconds, failed)
        while len(answers.latencies_s) < ANSWERS_PER_CLIENT * load.num_clients:
            await _wait(POLL_S, failed)
        answers.end_s = time.monotonic()
        print("end", flush=True)
    finally:
        for client in clients:
            client.close()
    return answers


async def _wait(seconds: float, failed: asyncio.Future[None]) -> None:
    await asyncio.wait([failed], timeout=seconds)
    if failed.done():
        failed.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", help="JSON: the fields of Load, the request as text")
    fields: dict[str, Any] = json.loads(parser.parse_args().load)
    load = Load(**{**fields, "request": fields["request"].encode()})
    answers = asyncio.run(run(load))
    seconds = answers.end_s - answers.begin_s
    print(json.dumps({"seconds": seconds, "latencies_s": answers.latencies_s}), flush=True)


if __name__ == "__main__":
    main()
