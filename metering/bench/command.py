"""The command line of scripts/bench: which subjects, how many rounds, in which form."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path

from rich.console import Console

from helexa_site.bootstrap.suite import fetch_default_model
from helexa_site.config import REPOSITORY_DIR
from inference.engine.bookkeeping_benchmark import bookkeeping_ms_per_step
from metering.bench.encoding import as_lines, encoding_costs
from metering.bench.masks import as_line, mask_costs
from metering.bench.report import as_json, print_table
from metering.bench.run import Results, run
from metering.bench.server import BenchServer
from metering.bench.subject import SubjectProcess

PEERS = {"llama_cpp": "llama_cpp", "transformers_generate": "transformers"}
"""Subject kind -> the module that must be importable for it."""

DATA_DIR = REPOSITORY_DIR / "var" / "bench"
BOOKKEEPING_SEQUENCES = 256


def main() -> None:
    arguments = _parser().parse_args()
    console = Console(stderr=True)
    server = None if arguments.no_http else BenchServer(DATA_DIR, console)
    subjects: list[SubjectProcess] = []
    try:
        subjects = _open_subjects(arguments, server)
        results = run(
            subjects,
            num_rounds=arguments.rounds,
            on_reading=lambda name, subject, value: console.print(
                f"{name:<36} {subject:<24} {value:10.3f}"
            ),
        )
    finally:
        for subject in subjects:
            subject.close()
        if server is not None:
            server.close()
    masks = mask_costs(_gguf(arguments), arguments.threads, DATA_DIR)
    step_ms = bookkeeping_ms_per_step(BOOKKEEPING_SEQUENCES)
    _print(results, step_ms, masks, as_json_text=arguments.json)


def _print(
    results: Results, step_ms: float, masks: list[dict[str, float]], *, as_json_text: bool
) -> None:
    costs = encoding_costs()
    if as_json_text:
        ours = {"step_bookkeeping_ms": step_ms, "grammar_masks": masks, "encoding_us": costs}
        print(json.dumps({**as_json(results), **ours}, indent=2))
        return
    console = Console()
    print_table(results, console)
    console.print(f"bookkeeping of a step at {BOOKKEEPING_SEQUENCES} sequences: {step_ms:.3f} ms")
    console.print("\n".join(map(as_line, masks)))
    console.print("\n".join(as_lines(costs)))


def _gguf(arguments: argparse.Namespace) -> str:
    return str(arguments.gguf or fetch_default_model())


def _open_subjects(
    arguments: argparse.Namespace, server: BenchServer | None
) -> list[SubjectProcess]:
    threads = str(arguments.threads)
    gguf = _gguf(arguments)
    subjects = [
        SubjectProcess("helexa_engine", gguf=gguf, num_threads=threads, data_dir=str(DATA_DIR))
    ]
    if server is not None:
        subjects.append(SubjectProcess("helexa_http", url=server.url, model=server.model))
    for kind, module in PEERS.items():
        if kind not in arguments.skip and importlib.util.find_spec(module) is not None:
            subjects.append(SubjectProcess(kind, gguf=gguf, num_threads=threads))
    return subjects


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--gguf", type=Path, help="the model file (default: the default model)")
    parser.add_argument("--rounds", type=int, default=3, help="kept rounds after the warm-up one")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-http", action="store_true", help="the engine only, no server")
    parser.add_argument("--skip", nargs="*", default=[], choices=sorted(PEERS), metavar="PEER")
    parser.add_argument("--json", action="store_true", help="all readings, to standard output")
    return parser


if __name__ == "__main__":
    main()
