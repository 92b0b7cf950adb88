"""Results as a table for people and as JSON for machines."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.run import INTERPRETER_ROW, MEMORY_ROW, Results

MEMORY_BOUND = 1.5
"""The engine's largest memory over its interpreter's, in multiples of all of llama.cpp's."""
LESS_IS_BETTER = ("s", "MiB")


def machine() -> str:
    """The machine in words: without it a number means nothing."""
    gib = psutil.virtual_memory().total / 2**30
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count()
    return f"{_cpu_name()}, {cores} cores, {gib:.0f} GiB, Python {platform.python_version()}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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
    """The engine's resident memory without its interpreter's, over all of llama.cpp's; ``None``
    where one of them was not measured."""
    ours = results.median(MEMORY_ROW, "helexa_engine")
    interpreter = results.median(INTERPRETER_ROW, "helexa_engine")
    theirs = results.median(MEMORY_ROW, "llama_cpp")
    if ours is None or interpreter is None or not theirs:
        return None
    return (ours - interpreter) / theirs


def print_table(results: Results, console: Console) -> None:
    """Medians, and beside every peer the first subject's speed-up."""
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
