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
from pathlib import Path
from typing import Any, Protocol

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
from benchmarks.run import Results
from benchmarks.subject import REPOSITORY_DIR, SubjectError, SubjectProcess

DATA_DIR = REPOSITORY_DIR / "var" / "bench"
LIMIT_QUESTIONS = {"copy_bytes_per_s": "B/s", "matmul_flops_per_s": "FLOP/s"}
"""The device's own measurements in every round, and their units."""


class Process(Protocol):
    """The used part of ``benchmarks.subject.SubjectProcess``."""

    description: str

    def ask(self, **question: Any) -> Any: ...

    def close(self) -> None: ...


OpenProcess = Callable[[str, dict[str, str]], Process]
"""Opens a process for a subject's kind and options. Raises ``SubjectError``."""


class CardRun:
    """``rows`` are all rows of the run: their indices make the prompts' seeds, so that subjects of
    different stages get the same ones."""

    def __init__(
        self,
        device: Process,
        open_process: OpenProcess,
        *,
        rows: Sequence[Row],
        num_rounds: int,
        report: Callable[[str], None],
    ) -> None:
        self.results = Results({DEVICE: device.description})
        self.failures: dict[str, str] = {}
        self._device = device
        self._open_process = open_process
        self._places = {row: place for place, row in enumerate(rows)}
        self._num_rounds = num_rounds
        self._report = report

    @property
    def limits(self) -> Limits | None:
        """``None`` before the first kept round."""
        copies, products = (self.results.median(name, DEVICE) for name in LIMIT_QUESTIONS)
        if copies is None or products is None:
            return None
        return Limits(copy_bytes_per_s=copies, matmul_flops_per_s=products)

    def run_stage(self, subjects: Sequence[PlannedSubject]) -> None:
        """Round 0 warms up and is discarded. Raises ``SubjectError`` where the device's own process
        fails."""
        opened: dict[str, Process] = {}
        try:
            for subject in subjects:
                self._open(subject, opened)
            for round_number in range(self._num_rounds + 1):
                self._ask_device(round_number)
                self._ask_subjects(round_number, subjects, opened)
        finally:
            for process in opened.values():
                process.close()

    def _open(self, subject: PlannedSubject, opened: dict[str, Process]) -> None:
        began_s = time.monotonic()
        try:
            process = self._open_process(subject.kind, subject.options)
        except SubjectError as error:
            self.fail(subject.label, error)
            return
        opened[subject.label] = process
        self.results.subjects[subject.label] = process.description
        self._report(f"{subject.label}: loaded in {time.monotonic() - began_s:.0f} s")

    def _ask_device(self, round_number: int) -> None:
        for question, unit in LIMIT_QUESTIONS.items():
            value = self._device.ask(measure=question)
            self._keep(round_number, question, unit, DEVICE, value)

    def _ask_subjects(
        self, round_number: int, subjects: Sequence[PlannedSubject], opened: dict[str, Process]
    ) -> None:
        rows = sorted({row for s in subjects for row in s.rows}, key=self._places.__getitem__)
        for row in rows:
            for subject in subjects:
                if row in subject.rows and subject.label in opened:
                    self._ask(round_number, row, subject, opened)

    def _ask(
        self, round_number: int, row: Row, subject: PlannedSubject, opened: dict[str, Process]
    ) -> None:
        seed = 1000 * round_number + self._places[row]
        try:
            value = opened[subject.label].ask(**row.question, seed=seed)
        except SubjectError as error:
            opened.pop(subject.label).close()
            self.fail(subject.label, error)
            return
        self._keep(round_number, row.name, "tok/s", subject.column, value)

    def _keep(self, round_number: int, name: str, unit: str, column: str, value: float) -> None:
        self._report(f"{name:<32} {column:<14} {value:12,.0f} {unit}")
        if round_number > 0:
            self.results.add(name, unit, column, value)

    def fail(self, label: str, error: SubjectError) -> None:
        """``label`` is not measured, or not further."""
        self._report(f"{label} is not measured: {error}")
        self.failures[label] = str(error)


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
    run = CardRun(
        device,
        open_process,
        rows=rows,
        num_rounds=arguments.rounds,
        report=lambda text: console.print(text, markup=False, highlight=False),
    )
    try:
        _run_shapes(run, device, rows, arguments, folders)
    except SubjectError as error:
        # The device's own process: without it there are no shares, but the readings are reported.
        run.fail(DEVICE, error)
    finally:
        device.close()
    _print(run, rows, as_json_text=arguments.json)
    return 1 if run.failures else 0


def _run_shapes(
    run: CardRun,
    device: Process,
    rows: Sequence[Row],
    arguments: argparse.Namespace,
    folders: Mapping[str, Path],
) -> None:
    for shape, folder in folders.items():
        place = Place(
            device=arguments.device,
            folder=folder,
            num_threads=arguments.threads,
            data_dir=arguments.data_dir,
            vllm_python=arguments.vllm_python,
        )
        planned = planned_subjects(shape, rows, arguments.subjects, place)
        for stage in stages(planned, device.ask(measure="free_bytes")):
            run.run_stage(stage)


def _print(run: CardRun, rows: Sequence[Row], *, as_json_text: bool) -> None:
    lines = report_lines(run.results, rows, run.limits)
    if as_json_text:
        print(json.dumps(as_json(run.results, lines, run.limits, run.failures), indent=2))
        return
    print_table(run.results, rows, lines, run.limits, run.failures)


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
