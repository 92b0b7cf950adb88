"""Hidden rows between two processes over a stage link, as they cross between hosts:

    python -m benchmarks.stage_links [--features 5120] [--rows 1 32 512] [--seconds 3] [--json]

Two links over loopback, mutual TLS 1.3, rows of bfloat16. Each number of rows is measured there and
back, one step after the other, and one way, as fast as the link takes them. CPU seconds are of one
end, sending and receiving, and of all its threads. Beside it stands what the bytes take on a link
of 1 Gbit/s, with those of TLS, TCP/IP and Ethernet round them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import msgspec
import torch

from benchmarks.report import machine
from inference.engine.stages.row_link import HEADER, RowLink
from inference.protocol.stage_links import LinkIdentity
from inference.stage_links.dialling import dial
from inference.stage_links.identities import Purpose, new_identity
from inference.stage_links.listener import LinkListener

LOOPBACK = "127.0.0.1"
JOIN_S = 60.0
GIGABIT_BYTES_PER_S = 125e6
RECORD_BYTES, RECORD_BYTES_ROUND = 1 << 14, 5 + 1 + 16
"""The most of a TLS 1.3 record (RFC 8446, 5.1), and the header, content type and tag round it."""
SEGMENT_BYTES, SEGMENT_BYTES_ROUND = 1500 - 52, 52 + 38
"""The most of a TCP segment with timestamps in a frame of Ethernet; round it the headers of IP and
TCP, and the frame's preamble, header, check and gap."""
ECHOED, READ, LAST = 1, 2, 3
"""Numbers of steps: which the other end sends back, reads only, and answers when it has read all
before."""


class Echo(msgspec.Struct, frozen=True):
    """What the other end is started with."""

    identity: LinkIdentity
    stage: str
    port: int
    num_features: int


@dataclass(frozen=True, slots=True)
class Row:
    num_rows: int
    num_bytes: int
    there_and_back_p10_ms: float
    there_and_back_p50_ms: float
    one_way_rows_per_s: float
    cpu_s_per_gb: float
    """The CPU time of this end, sending and receiving the same bytes."""
    gigabit_ms: float
    """Computed."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stage_links", description=__doc__)
    parser.add_argument("--features", type=int, default=5120)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number of rows")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Peer(options.features) as peer:
        found = [peer.measure(num_rows, options.seconds) for num_rows in options.rows]
    if options.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in found]}))
        return
    print(machine())
    for row in found:
        print(
            f"{row.num_rows:4} rows, {row.num_bytes:8} bytes: there and back "
            f"{row.there_and_back_p50_ms:.3f} ms (p10 {row.there_and_back_p10_ms:.3f}), one way "
            f"{row.one_way_rows_per_s:.0f} rows/s, {row.cpu_s_per_gb:.2f} CPU s/GB; at 1 Gbit/s "
            f"{row.gigabit_ms:.2f} ms"
        )


class Peer:
    """A process that sends each step's rows back."""

    def __init__(self, num_features: int) -> None:
        self._num_features = num_features
        stage, engine = new_identity(), new_identity()
        purposes: dict[Purpose, str] = {"rows": engine.certificate, "rows-back": engine.certificate}
        listener = LinkListener((LOOPBACK, 0), stage, purposes)
        echo = Echo(engine, stage.certificate, listener.port, num_features)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from benchmarks.stage_links import echo; echo()"],
            stdin=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(echo))
        self._process.stdin.close()
        links = listener.accept_all(JOIN_S)
        self._there = RowLink(links["rows-back"], num_features, is_narrow=True)
        self._back = RowLink(links["rows"], num_features)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def measure(self, num_rows: int, seconds: float) -> Row:
        rows = torch.randn(num_rows, self._num_features, dtype=torch.bfloat16)
        num_bytes = HEADER.size + 2 * rows.numel()
        turns: list[float] = []
        cpu_s = time.process_time()
        end_s = time.perf_counter() + seconds / 2
        while not turns or time.perf_counter() < end_s:
            began_s = time.perf_counter()
            self._there.send(ECHOED, rows)
            assert self._back.receive().number == ECHOED
            turns.append(time.perf_counter() - began_s)
        cpu_s = time.process_time() - cpu_s
        turns.sort()
        num_sent, began_s = max(8, len(turns) // 2), time.perf_counter()
        for _ in range(num_sent):
            self._there.send(READ, rows)
        self._there.send(LAST, rows[:0])
        assert self._back.receive().number == LAST
        one_way_s = time.perf_counter() - began_s
        return Row(
            num_rows=num_rows,
            num_bytes=num_bytes,
            there_and_back_p10_ms=1e3 * turns[len(turns) // 10],
            there_and_back_p50_ms=1e3 * turns[len(turns) // 2],
            one_way_rows_per_s=num_sent * num_rows / one_way_s,
            cpu_s_per_gb=cpu_s / (len(turns) * num_bytes / 1e9),
            gigabit_ms=gigabit_ms(num_bytes),
        )


def gigabit_ms(num_bytes: int) -> float:
    """What rows of ``num_bytes``, their header included, take on a link of 1 Gbit/s."""
    num_records = -(-num_bytes // RECORD_BYTES) + 1  # the header has its own
    num_bytes += num_records * RECORD_BYTES_ROUND
    num_bytes += -(-num_bytes // SEGMENT_BYTES) * SEGMENT_BYTES_ROUND
    return 1e3 * num_bytes / GIGABIT_BYTES_PER_S


def echo() -> None:
    """The process of the other end."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Echo)
    where = LOOPBACK, order.port
    back = dial(where, order.identity, order.stage, "rows", timeout_s=JOIN_S)
    there = dial(where, order.identity, order.stage, "rows-back", timeout_s=JOIN_S)
    sender = RowLink(back, order.num_features, is_narrow=True)
    receiver = RowLink(there, order.num_features)
    while True:
        arrival = receiver.receive()
        assert arrival.rows is not None
        if arrival.number != READ:
            sender.send(arrival.number, arrival.rows)


if __name__ == "__main__":
    main()
