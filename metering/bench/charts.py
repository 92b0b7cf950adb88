"""The pages' charts: a metric of one series over builds, and throughput against latency. Pure;
the results are JSON for the page's script."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from metering.bench.comparison import Metric, Verdict, judge, judged_metrics
from metering.bench.results import Cell, by_series
from metering.bench.summaries import concurrency_rows

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
