"""A card's rows, each as a share of the device's best and beside its goals: as a table for people
and as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cuda.plan import (
    BYTES_PER_TABLE_WEIGHT,
    BYTES_PER_WEIGHT,
    CONCURRENCIES,
    Row,
    workload_of,
)
from benchmarks.cuda.random_model import ALL_SHAPES, decode_floor_bytes, prefill_floor_flops
from benchmarks.report import machine
from benchmarks.run import Results

DEVICE = "device"
"""The subject of the limits' readings."""
DENSE_DECODE_GOAL = 0.8
QUANTIZED_DECODE_GOAL = 0.6
"""The goal as a share of the time for reading the weights and the context, for a sequence by
itself."""
PREFILL_GOAL = 0.5
"""The goal as a share of the rate of a large matrix product."""
CONTINUOUS_GOAL = 1.5
"""Times transformers' continuous batching, with the most sequences at once."""
UNMEASURED = "-"
NARROWEST_TABLE = 130
"""Columns of text, whatever the terminal or file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The device's best, as measured in the same run."""

    copy_bytes_per_s: float
    """Read and written."""
    matmul_flops_per_s: float


def share_of_limit(row: Row, tokens_per_s: float, limits: Limits) -> float:
    """1 is the device's best: decoding at the rate at which it copies, a prompt at the rate at
    which it multiplies."""
    config = ALL_SHAPES[row.shape]
    if row.measure == "prefill":
        return tokens_per_s * prefill_floor_flops(config, 1) / limits.matmul_flops_per_s
    steps_per_s = tokens_per_s / row.size
    step_bytes = decode_floor_bytes(
        config,
        bytes_per_weight=BYTES_PER_WEIGHT[row.weights],
        bytes_per_head_weight=BYTES_PER_TABLE_WEIGHT[row.weights],
        num_rows=row.size,
        context_tokens=workload_of(row.shape).mean_context_tokens,
    )
    return steps_per_s * step_bytes / limits.copy_bytes_per_s


def share_goal(row: Row) -> float | None:
    """``None`` where none is set."""
    if row.measure == "prefill":
        return PREFILL_GOAL
    if row.size > 1:
        return None
    return DENSE_DECODE_GOAL if row.weights == "bf16" else QUANTIZED_DECODE_GOAL


def ratio_goal(row: Row) -> float | None:
    is_set = (row.weights, row.measure, row.size) == ("bf16", "decode", max(CONCURRENCIES))
    return CONTINUOUS_GOAL if is_set else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the report. ``None``: not measured, or without a goal."""

    name: str
    helexa_tokens_per_s: float | None
    share: float | None
    share_goal: float | None
    transformers_tokens_per_s: float | None
    ratio: float | None
    ratio_goal: float | None
    vllm_tokens_per_s: float | None
    vllm_ratio: float | None


def report_lines(results: Results, rows: Sequence[Row], limits: Limits | None) -> list[Line]:
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


def as_json(results: Results, lines: Sequence[Line], limits: Limits | None) -> dict[str, Any]:
    return {
        "machine": machine(),
        "subjects": results.subjects,
        "limits": None if limits is None else asdict(limits),
        "rows": [asdict(line) for line in lines],
        "readings": results.readings,
        "not_measured": results.ended,
    }


def print_table(
    results: Results, rows: Sequence[Row], lines: Sequence[Line], limits: Limits | None
) -> None:
    """Medians."""
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
    for label, why in results.ended.items():
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
