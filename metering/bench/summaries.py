"""Cells as rows of numbers, in the original's fields, and as charts. Pure.

The API, the command and the pages show these. Charts are JSON for the page's script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from metering.bench.comparison import (
    Comparison,
    Difference,
    Metric,
    Spread,
    Verdict,
    judge,
    judged_metrics,
    percentile,
    spread_of,
)
from metering.bench.results import Build, Cell, Row, by_series

KNEE_LATENCY = 2.0
"""The knee is the most requests at once whose p95 is at most this many times the lightest's."""


def comparison_rows(comparison: Comparison) -> list[Row]:
    return [
        {
            "model_id": cell.model,
            "scenario_id": cell.scenario,
            "metric": one.metric.name,
            "before_median": one.before.median,
            "before_mad": one.before.mad,
            "before_n": one.before.num_samples,
            "after_median": one.after.median,
            "after_mad": one.after.mad,
            "after_n": one.after.num_samples,
            "ratio": one.ratio,
            "verdict": str(one.verdict),
        }
        for cell in comparison.cells
        for one in cell.differences
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One metric of a series: its latest build beside the one before and the best."""

    cell: Cell
    metric: Metric
    latest: Spread
    previous: Difference | None
    previous_build: str
    best: Difference | None
    """``None`` where the latest build is the best."""
    best_build: str

    @property
    def is_regression(self) -> bool:
        return self.previous is not None and self.previous.verdict is Verdict.REGRESSED


def standings_of(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Standing]]:
    """By model and GPUs."""
    groups: dict[tuple[str, str], list[Standing]] = {}
    for builds in by_series(cells):
        latest = builds[-1]
        for metric in judged_metrics(latest.scenario):
            if latest.of(metric.name):
                group = groups.setdefault((latest.model, gpus_text(latest.gpus)), [])
                group.append(_standing(metric, builds))
    return dict(sorted(groups.items()))


def gpus_text(gpus: Sequence[str]) -> str:
    """``2 x RTX 3090``."""
    counts = {name: list(gpus).count(name) for name in dict.fromkeys(gpus)}
    return ", ".join(name if num == 1 else f"{num} x {name}" for name, num in counts.items())


def _standing(metric: Metric, builds: Sequence[Cell]) -> Standing:
    def goodness(cell: Cell) -> float:
        value = cell.median(metric.name) or 0.0
        return value if metric.more_is_better else -value

    *before, latest = [cell for cell in builds if cell.of(metric.name)]
    best = max((*before, latest), key=goodness)
    previous = before[-1] if before else None
    now = latest.of(metric.name)
    spread = spread_of(now)
    assert spread is not None, "it has samples"
    return Standing(
        cell=latest,
        metric=metric,
        latest=spread,
        previous=judge(metric, previous.of(metric.name), now) if previous else None,
        previous_build=previous.build.build if previous else "",
        best=judge(metric, best.of(metric.name), now) if best is not latest else None,
        best_build=best.build.build,
    )


def build_fields(build: Build) -> Row:
    return {"build": build.build, **commit_fields(build)}


def commit_fields(build: Build) -> Row:
    return {
        "git_sha": build.git_sha or build.build,
        "build_timestamp": build.built_at.isoformat() if build.built_at else None,
        "package_version": build.package_version,
    }


def _head(cell: Cell) -> Row:
    return {
        "target_name": cell.target,
        "hostname": cell.hostname,
        "gpus": list(cell.gpus),
        "model_id": cell.model,
        **build_fields(cell.build),
    }


def _medians(cell: Cell, *names: str) -> Row:
    return {f"{name}_median": cell.median(name) for name in names}


def summary_rows(cells: Iterable[Cell]) -> list[Row]:
    return [
        {
            **_head(cell),
            "scenario_id": cell.scenario,
            "prompt_tokens": cell.whole("prompt_tokens_actual"),
            **_medians(cell, "ttft_s", "decode_tps", "prefill_tps", "total_s", "queue_wait_ms"),
            "ttft_s_p95": percentile(cell.of("ttft_s"), 95),
            "ttft_s_p99": percentile(cell.of("ttft_s"), 99),
            "total_s_p95": percentile(cell.of("total_s"), 95),
            "total_s_p99": percentile(cell.of("total_s"), 99),
            "quality_score_mean": _mean(cell.of("quality_score")),
            "vram_used_mb": cell.whole("vram_used_mb"),
            "concurrency": cell.whole("concurrency"),
            "rejected": cell.total("rejected"),
            "timing": cell.timing,
            "n": cell.num_samples,
        }
        for cell in cells
    ]


def series_rows(cells: Iterable[Cell]) -> list[Row]:
    """Builds, oldest first."""
    return [
        {
            **build_fields(cell.build),
            "target_name": cell.target,
            **_medians(cell, "ttft_s", "decode_tps", "prefill_tps", "total_s"),
            "quality_score_mean": _mean(cell.of("quality_score")),
            "samples": cell.num_samples,
        }
        for cell in sorted(cells, key=lambda cell: cell.build.age_key)
    ]


def scaling_rows(cells: Sequence[Cell]) -> list[Row]:
    """Speeds over the length of the prompt. ``decode_flatness`` is the longest prompt's share of
    the shortest's speed."""
    rows = []
    for group in _grouped(cells, ("chat", "prefill", "context")):
        points = [
            {
                "scenario_id": cell.scenario,
                "prompt_tokens": cell.whole("prompt_tokens_actual") or _size(cell),
                **_medians(cell, "decode_tps", "prefill_tps", "ttft_s"),
                "n": cell.num_samples,
            }
            for cell in group
        ]
        points.sort(key=lambda point: (point["prompt_tokens"], point["scenario_id"]))
        speeds = [point["decode_tps_median"] for point in points if point["decode_tps_median"]]
        flatness = speeds[-1] / speeds[0] if len(speeds) > 1 else None
        rows.append({**_head(group[0]), "points": points, "decode_flatness": flatness})
    return rows


def concurrency_rows(cells: Sequence[Cell]) -> list[Row]:
    """Throughput against latency, and the knee: the most requests at once that are all served, with
    a p95 of at most twice the lightest's."""
    rows = []
    for group in _grouped(cells, ("concurrency",)):
        points = [
            {
                "concurrency": _size(cell),
                "tps_median": cell.median("decode_tps"),
                "ttft_s_median": cell.median("ttft_s"),
                "ttft_p95_s": cell.median("ttft_p95_s"),
                "queue_wait_ms_median": cell.median("queue_wait_ms"),
                "rejected": cell.total("rejected"),
                "n": cell.num_samples,
            }
            for cell in sorted(group, key=_size)
        ]
        rows.append({**_head(group[0]), "points": points, "knee_concurrency": knee_of(points)})
    return rows


def knee_of(points: Sequence[Row]) -> int | None:
    """``points`` by rising concurrency. ``None`` with fewer than two: one shows no bend."""
    if len(points) < 2:
        return None
    lightest = next((point["ttft_p95_s"] for point in points if point["ttft_p95_s"]), None)
    knee = None
    for point in points:
        p95_s = point["ttft_p95_s"]
        if point["rejected"] or p95_s is None or lightest is None:
            continue
        if p95_s <= KNEE_LATENCY * lightest:
            knee = point["concurrency"]
    return knee


def swap_rows(cells: Sequence[Cell]) -> list[Row]:
    return [
        {
            **_head(cell),
            "scenario_id": cell.scenario,
            **_medians(cell, "swap_unload_ms", "swap_load_ms"),
            "swap_load_ms_p95": percentile(cell.of("swap_load_ms"), 95),
            "n": cell.num_samples,
        }
        for cell in cells
        if cell.of("swap_load_ms")
    ]


def _mean(values: Sequence[float]) -> float | None:
    """Scores are of earlier releases and imported results."""
    return sum(values) / len(values) if values else None


def _size(cell: Cell) -> int:
    return int(cell.scenario.split(":")[1])


def _grouped(cells: Iterable[Cell], kinds: Sequence[str]) -> list[list[Cell]]:
    """Cells of these kinds that have a size, grouped by target, build and model."""
    groups: dict[tuple[Build, str], list[Cell]] = {}
    for cell in cells:
        kind, *rest = cell.scenario.split(":")
        if kind in kinds and rest:
            groups.setdefault((cell.build, cell.model), []).append(cell)
    return list(groups.values())


Chart = dict[str, Any]


def trend_charts(cells: Sequence[Cell], target: str) -> list[Chart]:
    """The charts of one model and scenario. ``target``'s line is solid and marks its regressions;
    other targets' are dashed: one with a single build is a horizontal line."""
    age_keys = {cell.build.build: cell.build.age_key for cell in cells}
    labels = sorted(age_keys, key=age_keys.__getitem__)
    charts = []
    for metric in judged_metrics(cells[0].scenario) if cells else ():
        lines = [
            _line(metric, measured, labels, is_baseline=measured[0].target != target)
            for builds in by_series(cells)
            if (measured := [cell for cell in builds if cell.of(metric.name)])
        ]
        if lines:
            charts.append(
                {
                    "id": f"trend-{metric.name}",
                    "kind": "line",
                    "title": f"{metric.label} {metric.unit}",
                    "hint": "more is better" if metric.more_is_better else "less is better",
                    "labels": labels,
                    "lines": sorted(lines, key=lambda line: (line["is_baseline"], line["name"])),
                }
            )
    return charts


def _line(
    metric: Metric, builds: Sequence[Cell], labels: Sequence[str], *, is_baseline: bool
) -> Chart:
    values = {cell.build.build: cell.median(metric.name) for cell in builds}
    if is_baseline and len(values) == 1:
        values = dict.fromkeys(labels, *values.values())
    regressed = {
        after.build.build for before, after in pairwise(builds) if _is_slower(metric, before, after)
    }
    return {
        "name": builds[0].target,
        "is_baseline": is_baseline,
        "points": [values.get(label) for label in labels],
        "marked": [label in regressed and not is_baseline for label in labels],
    }


def _is_slower(metric: Metric, before: Cell, after: Cell) -> bool:
    found = judge(metric, before.of(metric.name), after.of(metric.name))
    return found is not None and found.verdict is Verdict.REGRESSED


def concurrency_chart(cells: Sequence[Cell]) -> Chart | None:
    """Each target's and model's latest build: to the right is slower, up is more."""
    lines = [
        {
            "name": f"{row['target_name']} {row['model_id']}",
            "is_baseline": False,
            "points": [
                {
                    "x": point["ttft_p95_s"],
                    "y": point["tps_median"],
                    "label": f"{point['concurrency']} at once",
                    "is_marked": point["concurrency"] == row["knee_concurrency"],
                }
                for point in row["points"]
                if point["ttft_p95_s"] is not None and point["tps_median"] is not None
            ],
        }
        for row in concurrency_rows(cells)
    ]
    if not any(line["points"] for line in lines):
        return None
    return {
        "id": "knee",
        "kind": "scatter",
        "title": "tok/s of all together",
        "x_title": "p95 of the time to the first token, s",
        "lines": lines,
    }
