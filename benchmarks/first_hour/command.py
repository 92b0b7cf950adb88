"""The first hour on a card: doctor, the tests marked gpu, loads of every kind of file, figures
beside the peers, sleep and wake, a kill in mid-step. Each part has at most eight minutes and keeps
its logs; a run resumes after the last finished part. Nothing is downloaded. --device cpu --shapes
tiny is a trial run without a card."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.cuda.command import device_problem
from benchmarks.cuda.random_model import ALL_SHAPES, SHAPES
from benchmarks.first_hour.checks import free_bytes
from benchmarks.first_hour.models import KINDS, chosen
from benchmarks.first_hour.plan import Part, Setup, parts_of
from benchmarks.first_hour.state import State, StateError, open_parts, run_part, table_of
from benchmarks.report import machine
from benchmarks.subject import REPOSITORY_DIR
from inference.build import build_of_checkout

TABLE_WIDTH = 160
INTERRUPTED = 130


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 where every part that this host has room for has passed."""
    arguments = _parser().parse_args(words)
    if problem := device_problem(arguments.device) or _shapes_problem(arguments.shapes):
        return _refuse(problem)
    setup = _setup(arguments)
    parts = parts_of(setup)
    folder = arguments.folder or _default_folder(setup)
    try:
        state = State(folder)
    except StateError as error:
        return _refuse(str(error))
    again = _named(parts, state, arguments.again)
    if unknown := {*arguments.only, *again} - {part.name for part in parts}:
        return _refuse(f"no part is called {', '.join(sorted(unknown))}: --list names them")
    todo = open_parts(parts, state.results, only=arguments.only, again=again)
    code = 0
    if not arguments.list:
        code = _run(todo, state, folder, arguments.minutes)
    console = Console(width=max(TABLE_WIDTH, Console().width))
    console.print(table_of(parts, state.results, f"{machine()}; {folder}"), markup=False)
    return code or _exit_code(parts, state)


def _exit_code(parts: Sequence[Part], state: State) -> int:
    wanted = [part.name for part in parts if not part.left_out]
    results = [state.results.get(name) for name in wanted]
    return 0 if all(result and result.outcome == "passed" for result in results) else 1


def _run(todo: Sequence[Part], state: State, folder: Path, minutes: float | None) -> int:
    console = Console(stderr=True)
    ends_s = None if minutes is None else time.monotonic() + 60 * minutes
    environment = os.environ | {
        "HELEXA_DATA_DIR": str(folder / "data"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    build = build_of_checkout(REPOSITORY_DIR)
    commit = f"{build.git_sha}{'-dirty' if build.git_dirty else ''}"
    for part in todo:
        if ends_s is not None and time.monotonic() + part.limit_s > ends_s:
            console.print(f"{part.name} might take longer than what is left: the next run has it")
            break
        console.print(f"{part.name} …", markup=False)
        try:
            result = run_part(part, state.next_log(part), environment, commit)
        except KeyboardInterrupt:
            console.print(f"{part.name} was interrupted: the next run repeats it")
            return INTERRUPTED
        state.keep(part, result)
        words = f"  {result.outcome} after {result.seconds:.0f} s: {result.summary}"
        console.print(words, markup=False, highlight=False)
    return 0


def _named(parts: Sequence[Part], state: State, words: Collection[str]) -> set[str]:
    """The parts that ``--again`` names; ``failed`` are all that have not passed."""
    found = {word for word in words if word != "failed"}
    if "failed" in words:
        known = {part.name for part in parts}
        found |= {n for n, result in state.results.items() if result.outcome != "passed"} & known
    return found


def _setup(arguments: argparse.Namespace) -> Setup:
    arguments.data_dir.mkdir(parents=True, exist_ok=True)
    disk_bytes = shutil.disk_usage(arguments.data_dir).free
    is_tiny = arguments.shapes == ["tiny"]
    card_bytes = 0 if is_tiny else free_bytes(arguments.device)
    models = [
        chosen(kind, is_tiny=is_tiny, card_bytes=card_bytes, disk_bytes=disk_bytes)
        for kind in KINDS
    ]
    return Setup(
        device=arguments.device,
        shapes=arguments.shapes,
        models=models,
        data_dir=arguments.data_dir,
        num_threads=arguments.threads,
        rounds=arguments.rounds,
        vllm_python=arguments.vllm_python or _own_vllm(arguments.device),
    )


def _own_vllm(device: str) -> str | None:
    """This interpreter, where it has vLLM. scripts/bench measures its builds for CPUs."""
    has_vllm = device != "cpu" and importlib.util.find_spec("vllm") is not None
    return sys.executable if has_vllm else None


def _default_folder(setup: Setup) -> Path:
    """One for each device and choice of shapes, whose results do not mix."""
    name = "_".join([setup.device.replace(":", ""), *setup.shapes])
    return REPOSITORY_DIR / "var" / "first-hour" / name


def _shapes_problem(shapes: Sequence[str]) -> str | None:
    if "tiny" in shapes and len(shapes) > 1:
        return "--shapes tiny stands alone: it replaces every real shape"
    return None


def _refuse(problem: str) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/first-hour-on-a-card", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(ALL_SHAPES))
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="no other parts")
    parser.add_argument(
        "--again",
        nargs="+",
        default=[],
        metavar="PART",
        help="run these once more, though they have ended; 'failed': all that have not passed",
    )
    parser.add_argument(
        "--minutes", type=float, help="start no part that might end later than that from now"
    )
    parser.add_argument("--rounds", type=int, default=2, help="kept rounds of scripts/bench")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--vllm-python", help="an interpreter that has vLLM for this card")
    parser.add_argument("--folder", type=Path, help="of state and logs (var/first-hour/…)")
    parser.add_argument(
        "--data-dir",
        type=lambda word: Path(word).absolute(),
        default=REPOSITORY_DIR / "var" / "bench",
        help="where weights are kept",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
