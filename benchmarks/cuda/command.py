"""The command line of scripts/bench --cuda: the rows that need a card, on weights that are made on
the spot at real models' shapes. --device cpu --shapes tiny is a trial run without a card; its
figures mean nothing."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cuda.plan import (
    COLUMNS,
    MEASURES,
    WEIGHTS,
    Place,
    PlannedSubject,
    Row,
    chosen_rows,
    planned_subjects,
    stages,
)
from benchmarks.cuda.random_model import ALL_SHAPES, SHAPES, NoRoomError, model_folder
from benchmarks.cuda.report import DEVICE, Limits, as_json, print_table, report_lines
from benchmarks.run import Asked, Measurement, Process, Results, run
from benchmarks.subject import REPOSITORY_DIR, SubjectError, SubjectProcess

DATA_DIR = REPOSITORY_DIR / "var" / "bench"
LIMITS = [
    Measurement("copy_bytes_per_s", "B/s", {"measure": "copy_bytes_per_s"}),
    Measurement("matmul_flops_per_s", "FLOP/s", {"measure": "matmul_flops_per_s"}),
]
"""The device's own measurements in every round."""


OpenProcess = Callable[[str, dict[str, str]], Process]
"""Opens a process for a subject's kind and options. Raises ``SubjectError``."""


def limits_of(results: Results) -> Limits | None:
    """``None`` before the first kept round."""
    copies, products = (results.median(limit.name, DEVICE) for limit in LIMITS)
    if copies is None or products is None:
        return None
    return Limits(copy_bytes_per_s=copies, matmul_flops_per_s=products)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRun:
    """``rows`` are all rows of the run, so that subjects of different stages get the same
    prompts."""

    device: Process
    open_process: OpenProcess
    rows: Sequence[Row]
    num_rounds: int
    report: Callable[[str], None]
    results: Results

    def run_stage(self, subjects: Sequence[PlannedSubject]) -> None:
        asked = [Asked(DEVICE, DEVICE, self.device, LIMITS)]
        try:
            for subject in subjects:
                began_s = time.monotonic()
                try:
                    process = self.open_process(subject.kind, subject.options)
                except SubjectError as error:
                    self.results.ended[subject.label] = str(error)
                    self.report(f"{subject.label} is not measured: {error}")
                    continue
                rows = [row.measurement for row in subject.rows]
                asked.append(Asked(subject.label, subject.column, process, rows))
                self.results.subjects[subject.label] = process.description
                self.report(f"{subject.label}: loaded in {time.monotonic() - began_s:.0f} s")
            run(
                asked,
                self.results,
                measurements=[*LIMITS, *(row.measurement for row in self.rows)],
                num_rounds=self.num_rounds,
                on_reading=lambda name, column, value: self.report(
                    f"{name:<32} {column:<14} {value:12,.0f}"
                ),
            )
        finally:
            for one in asked[1:]:
                one.process.close()


def open_subject_process(kind: str, options: dict[str, Any]) -> SubjectProcess:
    return SubjectProcess(kind, **options)


def main(
    words: Sequence[str] | None = None, open_process: OpenProcess = open_subject_process
) -> int:
    """Returns the exit code: 0 where every row was measured."""
    arguments = _parser().parse_args(words)
    if problem := device_problem(arguments.device):
        return _refuse(problem)
    try:
        folders = {
            shape: model_folder(shape, arguments.data_dir, arguments.device)
            for shape in arguments.shapes
        }
    except (NoRoomError, subprocess.CalledProcessError) as error:
        return _refuse(str(error))
    return measure(arguments, folders, open_process)


def device_problem(device: str) -> str | None:
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return (
            f"no CUDA device: torch {torch.__version__} sees none "
            "(--device cpu --shapes tiny tries the bench out)"
        )
    return None


def measure(
    arguments: argparse.Namespace, folders: Mapping[str, Path], open_process: OpenProcess
) -> int:
    """``folders``: each shape's weights."""
    console = Console(stderr=True)
    rows = chosen_rows(arguments.shapes, arguments.weights, arguments.only)
    try:
        device = open_process("device_limits", {"device": arguments.device})
    except SubjectError as error:
        return _refuse(str(error))
    card = CardRun(
        device=device,
        open_process=open_process,
        rows=rows,
        num_rounds=arguments.rounds,
        report=lambda text: console.print(text, markup=False, highlight=False),
        results=Results({DEVICE: device.description}),
    )
    try:
        _run_shapes(card, arguments, folders)
    except SubjectError as error:
        # The device's own process: without it there are no shares, but the readings are reported.
        card.results.ended[DEVICE] = str(error)
    finally:
        device.close()
    _print(card.results, rows, as_json_text=arguments.json)
    return 1 if card.results.ended else 0


def _run_shapes(card: CardRun, arguments: argparse.Namespace, folders: Mapping[str, Path]) -> None:
    for shape, folder in folders.items():
        place = Place(
            device=arguments.device,
            folder=folder,
            num_threads=arguments.threads,
            data_dir=arguments.data_dir,
            vllm_python=arguments.vllm_python,
        )
        planned = planned_subjects(shape, card.rows, arguments.subjects, place)
        for stage in stages(planned, card.device.ask(measure="free_bytes")):
            card.run_stage(stage)


def _print(results: Results, rows: Sequence[Row], *, as_json_text: bool) -> None:
    limits = limits_of(results)
    lines = report_lines(results, rows, limits)
    if as_json_text:
        print(json.dumps(as_json(results, lines, limits), indent=2))
    else:
        print_table(results, rows, lines, limits)


def _refuse(problem: str) -> int:
    print(f"error: {problem}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench --cuda", description=__doc__)

    def several(name: str, default: Iterable[str], choices: Iterable[str], help: str) -> None:
        parser.add_argument(
            name, nargs="+", default=list(default), choices=list(choices), help=help
        )

    several("--shapes", SHAPES, ALL_SHAPES, "whose weights are made, 3.4 and 16 GB")
    several("--weights", WEIGHTS, WEIGHTS, "as they are, or quantised while they load")
    several("--only", MEASURES, MEASURES, "rows of this kind")
    several("--subjects", COLUMNS, COLUMNS, "the report's columns")
    parser.add_argument("--rounds", type=int, default=2, help="kept rounds after the warm-up one")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--vllm-python", help="an interpreter that has vLLM for the device")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--data-dir",
        type=lambda word: Path(word).absolute(),
        default=DATA_DIR,
        help="where weights are kept",
    )
    parser.add_argument("--json", action="store_true", help="all readings, to standard output")
    return parser


if __name__ == "__main__":
    sys.exit(main())
