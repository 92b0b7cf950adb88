"""A card's rows as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cuda.plan import Row, workload_of
from benchmarks.cuda.run import DEVICE
from benchmarks.cuda.shares import Limits, ratio_goal, share_goal, share_of_limit
from benchmarks.report import machine
from benchmarks.run import Results

UNMEASURED = "-"
NARROWEST_TABLE = 130
"""Columns of text, whatever the terminal or file that it goes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the report. ``None``: not measured, or without a goal."""

    name: str
    helexa_tokens_per_s: float | None
    share: float | None
    """The share of the device's best."""
    share_goal: float | None
    transformers_tokens_per_s: float | None
    ratio: float | None
    ratio_goal: float | None
    vllm_tokens_per_s: float | None
    vllm_ratio: float | None


def report_lines(results: Results, rows: Sequence[Row], limits: Limits | None) -> list[Line]:
    """One for every row that was to be measured."""
    return [_line(results, row, limits) for row in rows]


def _line(results: Results, row: Row, limits: Limits | None) -> Line:
    ours = results.median(row.name, "helexa")
    theirs = results.median(row.name, "transformers")
    vllm = results.median(row.name, "vllm")
    share = None if ours is None or limits is None else share_of_limit(row, ours, limits)
    return Line(
        name=row.name,
        helexa_tokens_per_s=ours,
        share=share,
        share_goal=share_goal(row),
        transformers_tokens_per_s=theirs,
        ratio=None if ours is None or theirs is None else ours / theirs,
        ratio_goal=ratio_goal(row),
        vllm_tokens_per_s=vllm,
        vllm_ratio=None if ours is None or vllm is None else ours / vllm,
    )


def as_json(
    results: Results, lines: Sequence[Line], limits: Limits | None, failures: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "machine": machine(),
        "subjects": results.subjects,
        "limits": None if limits is None else asdict(limits),
        "rows": [asdict(line) for line in lines],
        "readings": results.readings,
        "not_measured": dict(failures),
    }


def print_table(
    results: Results,
    rows: Sequence[Row],
    lines: Sequence[Line],
    limits: Limits | None,
    failures: Mapping[str, str],
) -> None:
    """Medians. ``failures``: who was not measured, or not to the end, and why."""
    table = Table(title=f"{machine()}; {results.subjects[DEVICE]}", title_justify="left")
    table.add_column("median")
    for title in (
        "helexa",
        "of the best",
        "goal",
        "transformers",
        "ratio",
        "goal",
        "vLLM",
        "ratio",
    ):
        table.add_column(title, justify="right")
    for line in lines:
        table.add_row(line.name, *_cells(line))
    Console(width=max(NARROWEST_TABLE, Console().width)).print(table)
    for text in [*_notes(rows, limits), *_descriptions(results)]:
        print(text)
    for label, why in failures.items():
        print(f"{label} is not measured: {why}")


def _cells(line: Line) -> list[str]:
    return [
        _rate(line.helexa_tokens_per_s),
        _percent(line.share),
        _percent(line.share_goal),
        _rate(line.transformers_tokens_per_s),
        _times(line.ratio),
        _times(line.ratio_goal),
        _rate(line.vllm_tokens_per_s),
        _times(line.vllm_ratio),
    ]


def _notes(rows: Sequence[Row], limits: Limits | None) -> list[str]:
    notes = []
    if limits is not None:
        copied, multiplied = limits.copy_bytes_per_s / 1e9, limits.matmul_flops_per_s / 1e12
        notes.append(
            f"the device copies {copied:,.0f} GB/s and multiplies {multiplied:,.1f} TFLOP/s"
        )
    for workload in dict.fromkeys(workload_of(row.shape) for row in rows):
        notes.append(
            f"decode: prompts of {workload.prompt_tokens} tokens, then {workload.output_tokens} "
            f"timed steps; the best is reading weights and contexts as fast as it copies"
        )
    notes.append("prefill: the best is the projections' products as fast as it multiplies")
    return notes


def _descriptions(results: Results) -> list[str]:
    return [f"{label}: {words}" for label, words in results.subjects.items() if label != DEVICE]


def _rate(value: float | None) -> str:
    return UNMEASURED if value is None else f"{value:,.0f} tok/s"


def _percent(value: float | None) -> str:
    return UNMEASURED if value is None else f"{value:.0%}"


def _times(value: float | None) -> str:
    return UNMEASURED if value is None else f"{value:.2f}x"
