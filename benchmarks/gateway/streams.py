"""Many open streams at a reader's pace: whether every token comes, and how evenly.

    python -m benchmarks.gateway.streams --server daphne --streams 1000 --seconds 20

A neuron without a model gives each stream one token a step, all in one batch, and writes into each
which one it is and when it left. Jitter is how far the time between two tokens of a stream, at
their client, is from a step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gateway.__main__ import SERVERS
from benchmarks.gateway.measure import http_request, percentile
from benchmarks.gateway.processes import HOST, ProcessFailedError, RunningProcess
from benchmarks.gateway.stage import MODEL, StageOptions, stage
from helexa_site.config import REPOSITORY_DIR

TOKENS_PER_S = 20.0
START_S = 2.0
"""Within which the streams are opened, evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsResult:
    num_streams: int
    tokens_wanted: int
    tokens_lost: int
    jitter_p50_ms: float
    jitter_p99_ms: float
    on_its_way_p50_ms: float
    """The median time of a token from the neuron to the client."""
    on_its_way_p99_ms: float
    cpu_share: float
    """The share of one core that the gateway took."""


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    step_ms = 1000 / options.tokens_per_s
    wanted = StageOptions(
        step_ms=step_ms, stamped=True, with_key=options.key, with_metrics=options.metrics
    )
    with stage(wanted) as there:
        server = there.start_gateway(options.server)
        result = run(
            server,
            authorization=there.authorization,
            num_streams=options.streams,
            num_tokens=round(options.seconds * options.tokens_per_s),
            step_s=step_ms / 1000,
        )
    print(json.dumps(asdict(result), indent=2))


def run(
    server: RunningProcess, *, authorization: str, num_streams: int, num_tokens: int, step_s: float
) -> StreamsResult:
    """Raises ``ProcessFailedError``."""
    task = {
        "host": HOST,
        "port": server.port,
        "request": http_request(
            MODEL, streams=True, num_tokens=num_tokens, authorization=authorization
        ),
        "num_streams": num_streams,
        "start_s": START_S,
        "timeout_s": 60 + 10 * num_tokens * step_s,
    }
    cpu_s = server.cpu_s()
    clients = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway.stream_clients", json.dumps(task)],
        cwd=REPOSITORY_DIR,
        capture_output=True,
        text=True,
    )
    if clients.returncode != 0:
        server.check()
        raise ProcessFailedError(f"{server.name}: {clients.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(clients.stdout)
    return result_of(
        result["arrivals"],
        num_tokens=num_tokens,
        step_s=step_s,
        cpu_share=(server.cpu_s() - cpu_s) / result["seconds"],
    )


def result_of(
    arrivals: list[list[tuple[int, float, float]]],
    *,
    num_tokens: int,
    step_s: float,
    cpu_share: float,
) -> StreamsResult:
    """``arrivals``: of each stream its tokens in the order in which they came, each with its
    number, when it left and when it arrived."""
    numbers = list(range(num_tokens))
    lost = sum(
        len(set(numbers) - {number for number, _, _ in stream}) if stream else num_tokens
        for stream in arrivals
    )
    for stream in arrivals:
        came = [number for number, _, _ in stream]
        if came != sorted(set(came)):
            raise ProcessFailedError(f"tokens came twice or out of order: {came[:50]}")
    jitter_s = [
        abs(later[2] - earlier[2] - step_s)
        for stream in arrivals
        for earlier, later in itertools.pairwise(stream)
    ] or [0.0]
    on_its_way_s = [came_s - left_s for stream in arrivals for _, left_s, came_s in stream] or [0.0]
    return StreamsResult(
        num_streams=len(arrivals),
        tokens_wanted=num_tokens * len(arrivals),
        tokens_lost=lost,
        jitter_p50_ms=percentile(jitter_s, 50) * 1000,
        jitter_p99_ms=percentile(jitter_s, 99) * 1000,
        on_its_way_p50_ms=percentile(on_its_way_s, 50) * 1000,
        on_its_way_p99_ms=percentile(on_its_way_s, 99) * 1000,
        cpu_share=cpu_share,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=SERVERS, default=SERVERS[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens-per-s", type=float, default=TOKENS_PER_S, help="of each stream")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each stream")
    parser.add_argument("--no-key", dest="key", action="store_false", help="clients are anonymous")
    parser.add_argument("--no-metrics", dest="metrics", action="store_false")
    return parser


if __name__ == "__main__":
    main()
