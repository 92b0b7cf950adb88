"""Opens the subjects of a stage, asks them in alternating rounds beside the device itself, and
keeps the readings. A subject that breaks is left out from then on, and why is kept too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.cuda.plan import PlannedSubject, Row
from benchmarks.cuda.shares import Limits
from benchmarks.run import Results
from benchmarks.subject import SubjectError

DEVICE = "device"
LIMIT_QUESTIONS = {"copy_bytes_per_s": "B/s", "matmul_flops_per_s": "FLOP/s"}
"""What the device is asked in every round, and the unit of its answer."""


class Process(Protocol):
    """``benchmarks.subject.SubjectProcess``, as far as it is used here."""

    description: str

    def ask(self, **question: Any) -> Any: ...

    def close(self) -> None: ...


OpenProcess = Callable[[str, dict[str, str]], Process]
"""Opens a process for a subject's kind and options. Raises ``SubjectError``."""


class CardRun:
    """``rows`` are all that the run will ever ask: their places make the prompts' seeds, so that
    subjects of different stages are given the same ones."""

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
        """Round 0 warms up and is not kept. Raises ``SubjectError`` where the device's own process
        breaks."""
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
        """``label`` is not measured, or no further."""
        self._report(f"{label} is not measured: {error}")
        self.failures[label] = str(error)
