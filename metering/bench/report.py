"""Reports as Markdown: tables for a pull request or a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metering.bench.comparison import Comparison, Difference, Spread

Column = tuple[str, str]
"""Its title, and the field of a row."""
SUMMARY: tuple[Column, ...] = (
    ("engine", "target_name"),
    ("model", "model_id"),
    ("scenario", "scenario_id"),
    ("prompt tok", "prompt_tokens"),
    ("TTFT s", "ttft_s_median"),
    ("TTFT p95 s", "ttft_s_p95"),
    ("prefill tok/s", "prefill_tps_median"),
    ("decode tok/s", "decode_tps_median"),
    ("total s", "total_s_median"),
    ("total p95 s", "total_s_p95"),
    ("score", "quality_score_mean"),
    ("VRAM MB", "vram_used_mb"),
    ("conc", "concurrency"),
    ("queue ms", "queue_wait_ms_median"),
    ("rej", "rejected"),
    ("build", "build"),
    ("n", "n"),
)
HEAD: tuple[Column, ...] = (("engine", "target_name"), ("model", "model_id"), ("build", "build"))
SCALING: tuple[Column, ...] = (
    *HEAD,
    ("scenario", "scenario_id"),
    ("prompt tok", "prompt_tokens"),
    ("prefill tok/s", "prefill_tps_median"),
    ("decode tok/s", "decode_tps_median"),
    ("TTFT s", "ttft_s_median"),
    ("flatness", "decode_flatness"),
    ("n", "n"),
)
CONCURRENCY: tuple[Column, ...] = (
    *HEAD,
    ("conc", "concurrency"),
    ("tok/s", "tps_median"),
    ("TTFT s", "ttft_s_median"),
    ("TTFT p95 s", "ttft_p95_s"),
    ("queue ms", "queue_wait_ms_median"),
    ("rej", "rejected"),
    ("knee", "knee_concurrency"),
    ("n", "n"),
)
SWAP: tuple[Column, ...] = (
    *HEAD,
    ("scenario", "scenario_id"),
    ("unload ms", "swap_unload_ms_median"),
    ("load ms", "swap_load_ms_median"),
    ("load p95 ms", "swap_load_ms_p95"),
    ("n", "n"),
)


def markdown(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [
        "| " + " | ".join(title for title, _ in columns) + " |",
        "|" + "---|" * len(columns),
    ]
    lines += [
        "| " + " | ".join(cell_text(row.get(name)) for _, name in columns) + " |" for row in rows
    ]
    return "\n".join(lines)


def flat(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{**row, **point} for row in rows for point in row["points"]]


def cell_text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return number_text(value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def number_text(value: float) -> str:
    """Three significant digits, as many as medians of a few samples justify."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def comparison_markdown(comparison: Comparison, before: str, after: str) -> str:
    lines = [
        f"| model | scenario | metric | {before} | {after} | ratio | n | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in comparison.cells:
        for one in cell.differences:
            lines.append("| " + " | ".join([cell.model, cell.scenario, *_words(one)]) + " |")
    for side, cells in ((before, comparison.only_before), (after, comparison.only_after)):
        lines += [f"\nonly {side}: {model} {scenario}" for model, scenario in cells]
    return "\n".join(lines)


def spread_text(spread: Spread) -> str:
    return f"{number_text(spread.median)} ± {number_text(spread.mad)}"


def _words(one: Difference) -> list[str]:
    return [
        one.metric.name,
        spread_text(one.before),
        spread_text(one.after),
        "-" if one.ratio is None else f"{one.ratio:.3f}",
        f"{one.before.num_samples}/{one.after.num_samples}",
        str(one.verdict),
    ]
