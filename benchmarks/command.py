"""The command line of scripts/bench: which subjects, which rows, how many rounds, in which form."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.engine.bookkeeping import bookkeeping_ms_per_step
from benchmarks.gateway.encoding import as_lines, encoding_costs
from benchmarks.masks import as_line, mask_costs
from benchmarks.report import as_json, print_table
from benchmarks.run import Results, run
from benchmarks.selection import (
    BOOKKEEPING,
    ENCODING,
    MASKS,
    Selection,
    add_options,
    select,
)
from benchmarks.server import BenchServer, ServerDidNotStartError
from benchmarks.subject import SubjectError, SubjectProcess
from benchmarks.vllm_interpreter import process_environment
from benchmarks.weights.dequantised import dequantised_folder
from benchmarks.weights.model_files import KNOWN, SMOLLM2, model_file
from helexa_site.config import REPOSITORY_DIR
from inference.protocol.load_errors import LoadError

DATA_DIR = REPOSITORY_DIR / "var" / "bench"
BOOKKEEPING_SEQUENCES = 256
CUDA_WORD = "--cuda"


def main() -> None:
    words = sys.argv[1:]
    if CUDA_WORD in words:
        from benchmarks.cuda import command

        sys.exit(command.main([word for word in words if word != CUDA_WORD]))
    parser = _parser()
    arguments = parser.parse_args()
    try:
        selection = select(arguments)
    except ValueError as error:
        parser.error(str(error))
    console = Console(stderr=True)
    for kind, why in selection.missing.items():
        console.print(f"{kind} is not measured: {why}")
    try:
        results = _measure(arguments, selection, console)
        costs = _own_costs(arguments, selection)
    except (LoadError, ServerDidNotStartError, SubjectError) as error:
        sys.exit(f"scripts/bench: {error}")
    _print(results, costs, as_json_text=arguments.json)


def _measure(arguments: argparse.Namespace, selection: Selection, console: Console) -> Results:
    server = BenchServer(DATA_DIR, console) if "helexa_http" in selection.kinds else None
    subjects: list[SubjectProcess] = []
    try:
        for kind in selection.kinds:
            subjects.append(_open_subject(kind, arguments, server))
        return run(
            subjects,
            chosen=selection.rows,
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


def _open_subject(
    kind: str, arguments: argparse.Namespace, server: BenchServer | None
) -> SubjectProcess:
    threads, gguf = str(arguments.threads), _gguf(arguments)
    if kind == "helexa_engine":
        return SubjectProcess(kind, gguf=gguf, num_threads=threads, data_dir=str(DATA_DIR))
    if kind == "helexa_http":
        assert server is not None
        return SubjectProcess(kind, url=server.url, model=server.model)
    if kind == "vllm_cpu":
        python = arguments.vllm_python
        return SubjectProcess(
            kind,
            python=str(python),
            environment=process_environment(python, arguments.threads, DATA_DIR / "vllm-cache"),
            folder=str(dequantised_folder(Path(gguf), DATA_DIR)),
            num_threads=threads,
        )
    return SubjectProcess(kind, gguf=gguf, num_threads=threads)


def _own_costs(arguments: argparse.Namespace, selection: Selection) -> dict[str, Any]:
    """Measures those rows without a peer that were chosen."""
    costs: dict[str, Any] = {}
    if MASKS in selection.own_rows:
        costs["grammar_masks"] = mask_costs(_gguf(arguments), arguments.threads, DATA_DIR)
    if BOOKKEEPING in selection.own_rows:
        costs["step_bookkeeping_ms"] = bookkeeping_ms_per_step(BOOKKEEPING_SEQUENCES)
    if ENCODING in selection.own_rows:
        costs["encoding_us"] = encoding_costs()
    return costs


def _print(results: Results, costs: dict[str, Any], *, as_json_text: bool) -> None:
    if as_json_text:
        print(json.dumps({**as_json(results), **costs}, indent=2))
        return
    console = Console()
    if results.subjects:
        print_table(results, console)
    if (step_ms := costs.get("step_bookkeeping_ms")) is not None:
        console.print(
            f"bookkeeping of a step at {BOOKKEEPING_SEQUENCES} sequences: {step_ms:.3f} ms"
        )
    mask_lines = map(as_line, costs.get("grammar_masks", []))
    for line in [*mask_lines, *as_lines(costs.get("encoding_us", {}))]:
        console.print(line)


def _gguf(arguments: argparse.Namespace) -> str:
    return str(arguments.gguf or model_file(arguments.model, DATA_DIR))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--gguf", type=Path, help="a model file, instead of one by its name")
    parser.add_argument(
        "--model",
        choices=KNOWN,
        default=SMOLLM2,
        help="a published model, which is fetched, or a shape, whose file of random weights is "
        "made once (default: smollm2, the default model)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="kept rounds after the warm-up one")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="all readings, to standard output")
    parser.add_argument(
        CUDA_WORD,
        action="store_true",
        help="the rows that need a card instead, which have options of their own: --cuda --help",
    )
    add_options(parser)
    return parser


if __name__ == "__main__":
    main()
