"""scripts/bench-gateway: requests a second, latency, and the gateway's CPU time for a request.

Clients in a closed loop request short answers of a neuron without a model, so only the gateway is
measured. Servers alternate in rounds; figures are medians of the rounds. ``--upstream`` adds a
model that an upstream serves.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.gateway import upstream
from benchmarks.gateway.load import Load, Reading, http_request
from benchmarks.gateway.stage import (
    MODEL,
    UPSTREAM_MODEL,
    ProcessFailedError,
    RunningProcess,
    stage,
)
from helexa_site.program import REPOSITORY_DIR

SERVERS = ("daphne", "uvicorn")
CLIENTS = (1, 16, 64)
KINDS = ("streamed", "whole")
ERROR_CHARACTERS = 3000


class Cell(NamedTuple):
    kind: str
    num_clients: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.num_clients} at once"


Results = dict[tuple[str, Cell], list[Reading]]


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    server: RunningProcess
    model: str
    authorization: str


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.beside and options.database_url is not None:
        parser.error("--beside needs a database for each checkout, not the one of --database-url")
    console = Console(stderr=True)
    kinds = _servers(options, parser, console)
    try:
        with ExitStack() as stack:
            results = _run(_subjects(kinds, options, stack), options, console)
    except ProcessFailedError as error:
        sys.exit(f"scripts/bench-gateway: {error}")
    if options.json:
        print(json.dumps(_as_json(results), indent=2))
    else:
        _print(results, Console())


def _subjects(kinds: list[str], options: argparse.Namespace, stack: ExitStack) -> list[Subject]:
    first = stack.enter_context(stage(database_url=options.database_url))
    stages = [first, *(stack.enter_context(stage(one.resolve())) for one in options.beside)]
    upstream_port = 0
    if options.upstream or options.litellm is not None:
        upstream_port = upstream.start(first.processes).port
    if options.upstream:
        for there in stages:
            there.offer_upstream(upstream_port)
    subjects = []
    for kind in kinds:
        for there in stages:
            server = there.start_gateway(kind)
            name, key = server.name, there.authorization
            subjects.append(Subject(name, server, MODEL, key))
            if options.upstream:
                subjects.append(Subject(f"{name}, upstream", server, UPSTREAM_MODEL, key))
    if options.litellm is not None:
        proxy = upstream.start_litellm(
            options.litellm, first.processes, model=MODEL, upstream_port=upstream_port
        )
        subjects.append(Subject(proxy.name, proxy, MODEL, f"Bearer {upstream.LITELLM_KEY}"))
    return subjects


def _servers(
    options: argparse.Namespace, parser: argparse.ArgumentParser, console: Console
) -> list[str]:
    """Only tests need uvicorn."""
    missing = {kind for kind in SERVERS if importlib.util.find_spec(kind) is None}
    if options.servers is not None:
        if named := missing & set(options.servers):
            parser.error(f"{', '.join(named)} is not installed: pip install {' '.join(named)}")
        return list(options.servers)
    for kind in missing:
        console.print(f"{kind} is not measured: pip install {kind} brings it")
    return [kind for kind in SERVERS if kind not in missing]


def _run(subjects: list[Subject], options: argparse.Namespace, console: Console) -> Results:
    cells = [Cell(kind, num) for kind in options.kinds for num in options.clients]
    results: Results = defaultdict(list)
    for round_number in range(options.rounds):
        for cell in cells:
            for subject in subjects:
                reading = _measure(subject, cell, options)
                results[subject.name, cell].append(reading)
                console.print(
                    f"round {round_number + 1}: {subject.name}, {cell}: "
                    f"{reading.cpu_ms_per_request:.2f} ms"
                )
    return results


def _measure(subject: Subject, cell: Cell, options: argparse.Namespace) -> Reading:
    server = subject.server
    load = Load(
        port=server.port,
        request=http_request(
            subject.model, streams=cell.kind == "streamed", authorization=subject.authorization
        ),
        num_clients=cell.num_clients,
        warm_up_s=options.warm_up,
        seconds=options.seconds,
    )
    words = ["-m", "benchmarks.gateway.load", str(server.pid), json.dumps(asdict(load))]
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY_DIR, capture_output=True, text=True
    )
    if done.returncode != 0:
        server.check()
        raise ProcessFailedError(f"{server.name}, {cell}: {done.stderr[-ERROR_CHARACTERS:]}")
    return Reading(**json.loads(done.stdout))


def _print(results: Results, console: Console) -> None:
    table = Table("server", "", "requests/s", "p50 ms", "p99 ms", "CPU ms a request")
    for (server, cell), readings in results.items():
        middle = _median_of(readings)
        table.add_row(
            server,
            str(cell),
            f"{middle.requests_per_s:,.0f}",
            f"{middle.p50_ms:.1f}",
            f"{middle.p99_ms:.1f}",
            f"{middle.cpu_ms_per_request:.2f}",
        )
    console.print(table)


def _as_json(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "server": server,
            "streams": cell.kind == "streamed",
            "num_clients": cell.num_clients,
            "median": asdict(_median_of(readings)),
            "readings": [asdict(reading) for reading in readings],
        }
        for (server, cell), readings in results.items()
    ]


def _median_of(readings: list[Reading]) -> Reading:
    rows = [asdict(reading) for reading in readings]
    medians = {name: median(row[name] for row in rows) for name in rows[0]}
    return Reading(**{**medians, "num_requests": sum(row["num_requests"] for row in rows)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench-gateway", description=__doc__)
    parser.add_argument("--servers", nargs="*", choices=SERVERS, help="default: both")
    parser.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measurement")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before it")
    parser.add_argument(
        "--beside",
        nargs="+",
        type=Path,
        default=[],
        metavar="CHECKOUT",
        help="gateways of other checkouts as well, each with a database and neuron of its build",
    )
    parser.add_argument(
        "--litellm", type=Path, help="the Python of an environment that has litellm[proxy]"
    )
    parser.add_argument(
        "--upstream",
        action="store_true",
        help="each gateway also forwards to the upstream that LiteLLM's proxy stands before",
    )
    parser.add_argument("--database-url", help="a PostgreSQL of yours; SQLite without it")
    parser.add_argument("--json", action="store_true", help="all readings, to standard output")
    return parser


if __name__ == "__main__":
    main()
