"""Runs every measurement on all subjects in alternation, and reports it.

Rounds whose order turns each time (a, b, c, c, b, a, …) spread the machine's variations over all
subjects; the report has medians, and the medians of the rounds' ratios.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.subject import INTERPRETER_MEMORY, MEMORY, SubjectError, SubjectProcess
from benchmarks.subjects import DECODE_CONCURRENCIES, PREFILL_LENGTHS, PREFIX_TOKENS
from inference.neuron.discovery import cpu_device

MEMORY_ROW = "memory, resident"
INTERPRETER_ROW = "memory, interpreter"


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str
    unit: str
    question: dict[str, object]


def measurements() -> Iterator[Measurement]:
    for concurrency in DECODE_CONCURRENCIES:
        question = {"measure": "decode", "concurrency": concurrency}
        yield Measurement(f"decode, {concurrency} at once", "tok/s", question)
    for length in PREFILL_LENGTHS:
        yield Measurement(
            f"prefill, {length} tokens", "tok/s", {"measure": "prefill", "num_tokens": length}
        )
    question = {"measure": "time_to_first_token", "num_tokens": PREFIX_TOKENS}
    yield Measurement(f"TTFT, {PREFIX_TOKENS} tokens, cold", "s", question)
    yield Measurement(MEMORY_ROW, "MiB", {"measure": MEMORY})
    yield Measurement(INTERPRETER_ROW, "MiB", {"measure": INTERPRETER_MEMORY})


def warm_name(cold_name: str) -> str:
    return cold_name.replace("cold", "prefix-warm")


@dataclass(slots=True)
class Results:
    """``readings[measurement][subject]``, in the order they were taken."""

    subjects: dict[str, str]
    units: dict[str, str] = field(default_factory=dict)
    readings: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, unit: str, subject: str, value: float) -> None:
        self.units[name] = unit
        self.readings.setdefault(name, {}).setdefault(subject, []).append(value)

    def median(self, name: str, subject: str) -> float | None:
        values = self.readings.get(name, {}).get(subject)
        return statistics.median(values) if values else None

    def median_ratio(self, name: str, subject: str, other: str) -> float | None:
        """A slow moment changes it least."""
        found = self.readings.get(name, {})
        pairs = zip(found.get(subject, []), found.get(other, []), strict=False)
        ratios = [one / two for one, two in pairs if one and two]
        return statistics.median(ratios) if ratios else None


def run(
    subjects: Sequence[SubjectProcess],
    results: Results,
    *,
    measurements: Sequence[Measurement],
    num_rounds: int,
    on_reading: Callable[[str, str, float], None],
) -> None:
    """Round 0 warms up and is discarded. Each (measurement, round) has its own prompts, the same
    for all subjects."""
    for round_number in range(num_rounds + 1):
        for index, measurement in enumerate(measurements):
            for subject in subjects[:: 1 if round_number % 2 else -1]:
                if subject.kind in results.ended:
                    continue
                seed = 1000 * round_number + index
                try:
                    answer = subject.ask(**measurement.question, seed=seed)
                except SubjectError as error:
                    results.ended[subject.kind] = f"{error}, asked for {measurement.name}"
                    continue
                for name, value in _named(measurement, answer):
                    on_reading(name, subject.kind, value)
                    if round_number > 0:
                        results.add(name, measurement.unit, subject.kind, value)


def _named(measurement: Measurement, answer: object) -> Iterator[tuple[str, float]]:
    if isinstance(answer, list):
        cold_s, warm_s = answer
        yield measurement.name, cold_s
        yield warm_name(measurement.name), warm_s
    elif isinstance(answer, int | float):
        yield measurement.name, float(answer)


MEMORY_BOUND = 1.5
"""The most memory of the engine over its interpreter's, in multiples of llama.cpp's."""
LESS_IS_BETTER = ("s", "MiB")


def machine() -> str:
    gib = psutil.virtual_memory().total / 2**30
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    return f"{cpu_device().name}, {cores} cores, {gib:.0f} GiB, Python {platform.python_version()}"


def as_json(results: Results) -> dict[str, Any]:
    rows = {}
    for name, readings in results.readings.items():
        rows[name] = {
            "unit": results.units[name],
            "readings": readings,
            "median": {subject: results.median(name, subject) for subject in readings},
        }
    return {
        "machine": machine(),
        "subjects": results.subjects,
        "measurements": rows,
        "ended": results.ended,
        "memory_over_llama_cpp": memory_over_llama_cpp(results),
    }


def memory_over_llama_cpp(results: Results) -> float | None:
    """Without the interpreter's. ``None`` where one was not measured."""
    ours = results.median(MEMORY_ROW, "helexa_engine")
    interpreter = results.median(INTERPRETER_ROW, "helexa_engine")
    theirs = results.median(MEMORY_ROW, "llama_cpp")
    if ours is None or interpreter is None or not theirs:
        return None
    return (ours - interpreter) / theirs


def print_table(results: Results, console: Console) -> None:
    first, *peers = results.subjects
    table = Table(title=machine(), title_justify="left")
    table.add_column("median")
    table.add_column(first, justify="right")
    for peer in peers:
        table.add_column(peer, justify="right")
        table.add_column("ratio", justify="right")
    for name in results.readings:
        table.add_row(name, *_cells(results, name, first, peers))
    console.print(table)
    for subject, description in results.subjects.items():
        console.print(f"{subject}: {description}")
    console.print(
        "ratio: how many times better (faster, smaller) the first column is, the median of rounds"
    )
    if (over := memory_over_llama_cpp(results)) is not None:
        console.print(
            f"memory over the interpreter's, in multiples of llama.cpp's: {over:.2f} "
            f"(bound: {MEMORY_BOUND})"
        )


def _cells(results: Results, name: str, first: str, peers: list[str]) -> list[str]:
    unit = results.units[name]
    cells = [_value(results.median(name, first), unit)]
    for peer in peers:
        cells.append(_value(results.median(name, peer), unit))
        of, over = (peer, first) if unit in LESS_IS_BETTER else (first, peer)
        ratio = results.median_ratio(name, of, over)
        cells.append("-" if ratio is None else f"{ratio:.2f}x")
    return cells


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} {unit}" if unit == "s" else f"{value:.0f} {unit}"
