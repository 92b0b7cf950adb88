"""What charts draw: one model in one scenario over builds, and throughput against latency. Pure
over cells; the results are JSON for the page's script."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from metering.bench.results.comparison import Verdict, judge
from metering.bench.results.metrics import Metric, judged_metrics
from metering.bench.results.reading import CellValues, by_series
from metering.bench.results.statistics import median
from metering.bench.results.summaries import concurrency_rows, latest_builds

Chart = dict[str, Any]


def trend_charts(cells: Sequence[CellValues], target: str) -> list[Chart]:
    """Returns the charts of one model and scenario. ``target``'s line is solid and marks its
    regressions; the others are baselines, dashed: one with a single build is a level across all
    builds."""
    series = {name: builds for (name, _, _), builds in by_series(cells).items()}
    if not cells:
        return []
    age_keys = {cell.build.build: cell.build.age_key for cell in cells}
    labels = sorted(age_keys, key=age_keys.__getitem__)
    charts = []
    for metric in judged_metrics(cells[0].scenario):
        lines = [
            _line(metric, name, builds, labels, is_baseline=name != target)
            for name, builds in series.items()
            if any(cell.of(metric.name) for cell in builds)
        ]
        if lines:
            charts.append(
                {
                    "id": f"trend-{metric.name}",
                    "kind": "line",
                    "title": f"{metric.label} {metric.unit}".strip(),
                    "hint": "more is better" if metric.more_is_better else "less is better",
                    "labels": labels,
                    "lines": sorted(lines, key=lambda line: (line["is_baseline"], line["name"])),
                }
            )
    return charts


def concurrency_chart(cells: Sequence[CellValues]) -> Chart | None:
    """Each target's and model's latest build: right is slower, up is more."""
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
        for row in concurrency_rows(latest_builds(cells))
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


def _line(
    metric: Metric,
    name: str,
    builds: Sequence[CellValues],
    labels: Sequence[str],
    *,
    is_baseline: bool,
) -> Chart:
    measured = [cell for cell in builds if cell.of(metric.name)]
    values = {cell.build.build: median(cell.of(metric.name)) for cell in measured}
    if is_baseline and len(values) == 1:
        (level,) = values.values()
        points = [level for _ in labels]
    else:
        points = [values.get(label) for label in labels]
    regressed = {
        after.build.build
        for before, after in pairwise(measured)
        if _has_regressed(metric, before, after)
    }
    return {
        "name": name,
        "is_baseline": is_baseline,
        "points": points,
        "marked": [label in regressed and not is_baseline for label in labels],
    }


def _has_regressed(metric: Metric, before: CellValues, after: CellValues) -> bool:
    found = judge(metric, before.of(metric.name), after.of(metric.name))
    return found is not None and found.verdict is Verdict.REGRESSED
