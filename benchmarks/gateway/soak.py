"""What a gateway keeps: its memory after many requests beside its memory after a tenth of them.

    python -m benchmarks.gateway.soak --server daphne --requests 1000000

Takes a quarter of an hour and more. Clients in a closed loop ask for answers of two tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.gateway.__main__ import SERVERS
from benchmarks.gateway.measure import Cell, measure
from benchmarks.gateway.processes import RunningProcess
from benchmarks.gateway.stage import MODEL, Stage, StageOptions, stage

NUM_CLIENTS = 64
NUM_TOKENS = 2
STEP_MS = 1.0
ROUND_S = 30.0
QUIET_S = 3.0
"""After the last request, before memory is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    server: str
    early_requests: int
    early_bytes: int
    late_requests: int
    late_bytes: int

    @property
    def growth(self) -> float:
        return self.late_bytes / self.early_bytes - 1


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    wanted = StageOptions(step_ms=STEP_MS, with_key=options.key, with_metrics=options.metrics)
    with stage(wanted) as there:
        server = there.start_gateway(options.server)
        early = _ask(there, server, 0, options.requests // 10, options.round_s)
        early_bytes = server.resident_bytes()
        late = _ask(there, server, early, options.requests, options.round_s)
        result = SoakResult(
            server=options.server,
            early_requests=early,
            early_bytes=early_bytes,
            late_requests=late,
            late_bytes=server.resident_bytes(),
        )
    print(json.dumps({**asdict(result), "growth": round(result.growth, 4)}, indent=2))


def _ask(there: Stage, server: RunningProcess, asked: int, until: int, round_s: float) -> int:
    """How many requests there have been, ``until`` or some more."""
    cells = (
        Cell(streams=True, num_clients=NUM_CLIENTS),
        Cell(streams=False, num_clients=NUM_CLIENTS),
    )
    num_rounds = 0
    while asked < until:
        reading = measure(
            server,
            cells[num_rounds % 2],
            model=MODEL,
            authorization=there.authorization,
            num_tokens=NUM_TOKENS,
            warm_up_s=0.0,
            seconds=round_s,
        )
        num_rounds += 1
        asked += reading.num_requests
        mib = server.resident_bytes() / 2**20
        print(f"{asked:,} requests: {mib:.1f} MiB", file=sys.stderr)
    time.sleep(QUIET_S)
    return asked


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=SERVERS, default=SERVERS[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--round-s", type=float, default=ROUND_S)
    parser.add_argument("--no-key", dest="key", action="store_false", help="clients are anonymous")
    parser.add_argument("--no-metrics", dest="metrics", action="store_false")
    return parser


if __name__ == "__main__":
    main()
