"""Clients that each read one long stream, as a process of their own. What comes is kept as it is
with its time, and looked at when all is over: reading costs the measured machine as little as it
can.

    {"seconds": ..., "arrivals": [[[number, left_s, came_s], ...], ...]}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.gateway.load import HEAD_END, LAST_CHUNK, UnexpectedAnswerError

TOKEN = re.compile(rb" (\d+)@(\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    host: str
    port: int
    request: bytes
    num_streams: int
    start_s: float
    timeout_s: float


class Reader(asyncio.Protocol):
    """``ended`` is done with the whole answer, whatever ended it."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._came: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._came.append((time.monotonic(), data))
        if data.endswith(LAST_CHUNK):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def arrivals(self) -> list[tuple[int, float, float]]:
        """Raises ``UnexpectedAnswerError`` unless the answer is a stream that is whole."""
        whole = b"".join(data for _, data in self._came)
        head, _, _ = whole.partition(HEAD_END)
        if b" 200 " not in head.split(b"\r\n", 1)[0] or not whole.endswith(LAST_CHUNK):
            raise UnexpectedAnswerError(f"not a whole stream: {whole[:1000]!r} … {whole[-500:]!r}")
        found, unread = [], b""
        for came_s, data in self._came:
            unread += data
            end = unread.rfind(b"\n") + 1
            for number, left_s in TOKEN.findall(unread[:end]):
                found.append((int(number), float(left_s), came_s))
            unread = unread[end:]
        return found


async def run(task: Task) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    began_s = time.monotonic()
    readers = []
    for _ in range(task.num_streams):
        _, reader = await loop.create_connection(lambda: Reader(task.request), task.host, task.port)
        readers.append(reader)
        await asyncio.sleep(task.start_s / task.num_streams)
    await asyncio.wait([reader.ended for reader in readers], timeout=task.timeout_s)
    seconds = time.monotonic() - began_s
    return {"seconds": seconds, "arrivals": [reader.arrivals() for reader in readers]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", help="JSON: the fields of Task, the request as text")
    fields: dict[str, Any] = json.loads(parser.parse_args().task)
    task = Task(**{**fields, "request": fields["request"].encode()})
    print(json.dumps(asyncio.run(run(task))))


if __name__ == "__main__":
    main()
