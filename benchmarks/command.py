"""The command line of scripts/bench: subjects, rows, number of rounds, and output form."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from rich.console import Console

from benchmarks.gguf_files import KNOWN, SMOLLM2, model_file
from benchmarks.measured_once import (
    bookkeeping_ms_per_step,
    exact_log_probabilities,
    mean_error,
    open_on_cpu,
    prompts,
)
from benchmarks.ports import free_port
from benchmarks.random_folder import random_folder
from benchmarks.rounds import Measurement, Results, as_json, measurements, print_table, run
from benchmarks.shapes import SHAPES, DenseShape
from benchmarks.subject import SubjectError, SubjectProcess
from benchmarks.subjects.transformers import dequantised_folder
from benchmarks.subjects.vllm import default_interpreter, process_environment
from helexa_site.program import REPOSITORY_DIR
from inference.protocol.load_errors import LoadError

DATA_DIR = REPOSITORY_DIR / "var" / "bench"
BOOKKEEPING_SEQUENCES = 256
READING_A_GGUF = ("transformers", "accelerate")
"""transformers dequantises a GGUF with accelerate alone."""
IMPORTABLE_PEERS = {
    "llama_cpp": ("llama_cpp",),
    "transformers_generate": READING_A_GGUF,
    "transformers_continuous": READING_A_GGUF,
}
PACKAGES = {"llama_cpp": "llama-cpp-python"}
KINDS = ("helexa_engine", "helexa_http", *IMPORTABLE_PEERS, "vllm")
"""In the order of the report's columns; ratios are to the first one."""
BOOKKEEPING, QUALITY = "bookkeeping", "quality"
OF_QUALITY = ("helexa_engine", "llama_cpp")
FILE = "file"
WEIGHTS = (FILE, "bf16", "q8", "q4")
CPU = "cpu"
READY_PREFIX = "ready: "
SERVED_MODEL = "smollm2-135m-instruct"
SERVER_STOP_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Selection:
    """``missing`` has the reasons for unmeasured subjects."""

    kinds: list[str]
    missing: dict[str, str]
    rows: list[Measurement]
    own_rows: list[str]
    beside: list[Path]


@contextmanager
def served(console: Console) -> Iterator[str]:
    """Yields the URL of this checkout's server. If it exits, its own output has the reason. Raises
    ``SubjectError``."""
    command = [sys.executable, str(REPOSITORY_DIR / "manage.py"), "serve"]
    command += ["--port", str(free_port()), "--data-dir", str(DATA_DIR)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _ready_url(process, console)
        finally:
            process.terminate()
            process.wait(timeout=SERVER_STOP_TIMEOUT_S)


def _ready_url(process: subprocess.Popen[str], console: Console) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        console.print(f"serve: {line.rstrip()}", markup=False)
        if line.startswith(READY_PREFIX):
            # Its further output must be read, or a full pipe would block it.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return line.removeprefix(READY_PREFIX).strip()
    raise SubjectError(f"serve ended with exit code {process.wait()}")


def main() -> None:
    parser = arguments_parser()
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
    except (CalledProcessError, LoadError, SubjectError) as error:
        sys.exit(f"scripts/bench: {error}")
    _print(results, costs, as_json_text=arguments.json)
    if results.ended:
        sys.exit("\n".join(f"scripts/bench: {words}" for words in results.ended.values()))


def select(arguments: argparse.Namespace) -> Selection:
    beginnings = tuple(arguments.only)
    rows = [row for row in measurements() if row.name.startswith(beginnings)]
    own_rows = [row for row in (BOOKKEEPING, QUALITY) if row.startswith(beginnings)]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in [*own_rows, *(r.name for r in rows)]):
            raise ValueError(f"no row begins with {beginning!r}")
    skipped = {*arguments.skip, *(["helexa_http"] if arguments.no_http else [])}
    wanted = [kind for kind in KINDS if kind in arguments.subjects and kind not in skipped]
    if not rows:
        wanted = [kind for kind in wanted if QUALITY in own_rows and kind in OF_QUALITY]
    if problem := _why_unusable(arguments):
        raise ValueError(problem)
    missing = {kind: why for kind in wanted if (why := _why_missing(kind, arguments))}
    beside = [checkout.resolve() for checkout in arguments.beside] if rows else []
    if len({checkout.name for checkout in beside}) < len(beside):
        raise ValueError("two checkouts have one name")
    for checkout in beside:
        if not (checkout / "benchmarks" / "subject.py").exists():
            raise ValueError(f"{checkout} is no checkout of helexa")
    kinds = [kind for kind in wanted if kind not in missing]
    return Selection(kinds, missing, rows, own_rows, beside)


def _why_unusable(arguments: argparse.Namespace) -> str | None:
    import torch

    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        return f"no CUDA device: torch {torch.__version__} sees none"
    is_dense = isinstance(SHAPES.get(arguments.model), DenseShape) and arguments.gguf is None
    if arguments.weights != FILE and not is_dense:
        dense = ", ".join(name for name in SHAPES if isinstance(SHAPES[name], DenseShape))
        return f"--weights {arguments.weights} needs a dense shape as its --model: {dense}"
    return None


def _why_missing(kind: str, arguments: argparse.Namespace) -> str | None:
    is_file, on_card = arguments.weights == FILE, arguments.device != CPU
    if kind == "helexa_http" and (on_card or arguments.gguf or arguments.model != SMOLLM2):
        return "its server has the default model"
    if kind == "llama_cpp" and not is_file:
        return "it reads GGUF files alone"
    if on_card and is_file and kind not in OF_QUALITY:
        return "--weights bf16 measures it on a card"
    if on_card and kind == "transformers_generate":
        return "it is measured on a CPU alone"
    if kind == "vllm":
        python = arguments.vllm_python
        if python is not None and os.access(python, os.X_OK):
            return None
        return "no interpreter with vLLM: python -m benchmarks.subjects.vllm makes one"
    missing = [
        PACKAGES.get(module, module)
        for module in IMPORTABLE_PEERS.get(kind, ())
        if importlib.util.find_spec(module) is None
    ]
    return f"pip install {' '.join(missing)} brings what it needs" if missing else None


def _measure(arguments: argparse.Namespace, selection: Selection, console: Console) -> Results:
    results = Results({})
    if not selection.rows:
        return results
    subjects: list[SubjectProcess] = []
    with ExitStack() as stack:
        url = stack.enter_context(served(console)) if "helexa_http" in selection.kinds else ""
        checkouts: list[tuple[str, Path | None]] = [(kind, None) for kind in selection.kinds]
        checkouts += [("helexa_engine", checkout) for checkout in selection.beside]
        for kind, checkout in checkouts:
            try:
                subject = _open_subject(kind, arguments, url=url, checkout=checkout)
            except SubjectError as error:
                results.ended[str(checkout or kind)] = f"{error} while it was opened"
                continue
            subjects.append(stack.enter_context(closing(subject)))
            results.subjects[subject.kind] = subject.description
        run(
            subjects,
            results,
            measurements=selection.rows,
            num_rounds=arguments.rounds,
            on_reading=lambda name, subject, value: console.print(
                f"{name:<36} {subject:<24} {value:10.3f}"
            ),
        )
    return results


def _open_subject(
    kind: str, arguments: argparse.Namespace, *, url: str = "", checkout: Path | None = None
) -> SubjectProcess:
    if kind == "helexa_http":
        return SubjectProcess(kind, {"url": url, "model": SERVED_MODEL})
    weights = _weights(arguments)
    options = _card(arguments) | {"num_threads": str(arguments.threads)}
    if kind == "vllm":
        python, on_cpu = arguments.vllm_python, arguments.device == CPU
        cache_dir = DATA_DIR / "vllm-cache"
        environment = process_environment(python, arguments.threads, cache_dir) if on_cpu else None
        folder = weights if weights.is_dir() else dequantised_folder(weights, DATA_DIR)
        options["folder"] = str(folder)
        return SubjectProcess(kind, options, python=str(python), environment=environment)
    options["gguf"] = str(weights)
    if kind.startswith("transformers_"):
        options["batching"] = "continuous" if kind == "transformers_continuous" else "none"
    if kind == "helexa_engine":
        root = checkout or REPOSITORY_DIR
        options["data_dir"] = str(root / DATA_DIR.relative_to(REPOSITORY_DIR))
        if arguments.weights != FILE:
            options["quantization"] = "none" if arguments.weights == "bf16" else arguments.weights
    return SubjectProcess(kind, options, checkout=checkout)


def _card(arguments: argparse.Namespace) -> dict[str, str]:
    """Checkouts from before the option lack it, so the default is left out."""
    return {} if arguments.device == CPU else {"device": arguments.device}


def _weights(arguments: argparse.Namespace) -> Path:
    if arguments.weights != FILE:
        return random_folder(arguments.model, DATA_DIR, arguments.device)
    file: Path = arguments.gguf or model_file(arguments.model, DATA_DIR)
    return file.resolve()


def _own_costs(arguments: argparse.Namespace, selection: Selection) -> dict[str, Any]:
    costs: dict[str, Any] = {}
    if QUALITY in selection.own_rows:
        kinds = [kind for kind in OF_QUALITY if kind in selection.kinds]
        costs[QUALITY] = _quality(arguments, kinds) if kinds else {}
    if BOOKKEEPING in selection.own_rows:
        costs["step_bookkeeping_ms"] = bookkeeping_ms_per_step(BOOKKEEPING_SEQUENCES)
    return costs


def _quality(arguments: argparse.Namespace, kinds: list[str]) -> dict[str, dict[str, float]]:
    """In nats."""
    with open_on_cpu(_weights(arguments), DATA_DIR) as opened:
        token_ids = prompts(opened)
        exact = {name: exact_log_probabilities(opened, ids) for name, ids in token_ids.items()}
    errors: dict[str, dict[str, float]] = {}
    for kind in kinds:
        with closing(_open_subject(kind, arguments)) as subject:
            errors[kind] = {
                name: mean_error(
                    subject.ask(measure="log_probabilities", token_ids=ids), exact[name]
                )
                for name, ids in token_ids.items()
            }
    return errors


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
    for kind, errors in costs.get(QUALITY, {}).items():
        console.print(
            f"log-probabilities beside float32's, mean error in nats, {kind}: "
            + ", ".join(f"{text} {error:.3f}" for text, error in errors.items())
        )


def arguments_parser() -> argparse.ArgumentParser:
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
        "--device", default=CPU, metavar="cuda:0", help="a card, instead of the CPU"
    )
    parser.add_argument(
        "--weights",
        default=FILE,
        choices=WEIGHTS,
        help="the GGUF's, or random ones in bfloat16 at --model's shape, which helexa's engine "
        "quantises while it loads them, or not",
    )
    parser.add_argument("--subjects", nargs="+", default=KINDS, choices=KINDS, metavar="SUBJECT")
    parser.add_argument("--skip", nargs="*", default=[], choices=KINDS, metavar="SUBJECT")
    parser.add_argument("--no-http", action="store_true", help="the engine only, no server")
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="CHECKOUT",
        help="the engine of each of these checkouts too, in this environment",
    )
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="ROW", help="rows that begin so: decode, memory"
    )
    parser.add_argument(
        "--vllm-python", type=Path, default=default_interpreter(), help="has vLLM for the device"
    )
    return parser


if __name__ == "__main__":
    main()
