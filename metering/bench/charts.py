"""What the results page draws and lists of series: their standings, and JSON for its script."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from metering.bench.comparison import (
    Difference,
    Metric,
    Verdict,
    judge,
    judged_metrics,
    spread_of,
)
from metering.bench.results import Cell, Row, by_series

Chart = dict[str, Any]


def standings_of(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Row]]:
    """Each metric of each series, by model and GPUs: the latest build beside the one before and the
    best."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for builds in by_series(cells):
        latest = builds[-1]
        for metric in judged_metrics(latest.scenario):
            if latest.values[metric.name]:
                group = groups.setdefault((latest.model, _gpus_text(latest.gpus)), [])
                group.append(_standing(metric, builds))
    return dict(sorted(groups.items()))


def _gpus_text(gpus: Sequence[str]) -> str:
    """``2 x RTX 3090``."""
    counts = {name: gpus.count(name) for name in gpus}
    return ", ".join(name if num == 1 else f"{num} x {name}" for name, num in counts.items())


def _standing(metric: Metric, builds: Sequence[Cell]) -> Row:
    """``best`` is ``None`` where the latest build is the best."""
    measured = [cell for cell in builds if cell.values[metric.name]]
    latest = measured[-1]
    sign = 1 if metric.more_is_better else -1
    best = max(measured, key=lambda cell: sign * (cell.median(metric.name) or 0.0))
    previous = measured[-2] if len(measured) > 1 else None
    return {
        "cell": latest,
        "metric": metric,
        "latest": spread_of(latest.values[metric.name]),
        "previous": _judged(metric, previous, latest) if previous else None,
        "previous_build": previous.build.build if previous else "",
        "best": _judged(metric, best, latest) if best is not latest else None,
        "best_build": best.build.build,
        "query": urlencode(
            {"model": latest.model, "scenario": latest.scenario, "target": latest.target}
        ),
    }


def _judged(metric: Metric, before: Cell, after: Cell) -> Difference | None:
    return judge(metric, before.values[metric.name], after.values[metric.name])


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
            if (measured := [cell for cell in builds if cell.values[metric.name]])
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
        after.build.build
        for before, after in pairwise(builds)
        if (found := _judged(metric, before, after)) and found.verdict is Verdict.REGRESSED
    }
    return {
        "name": builds[0].target,
        "is_baseline": is_baseline,
        "points": [values.get(label) for label in labels],
        "marked": [label in regressed and not is_baseline for label in labels],
    }


def concurrency_chart(rows: Sequence[Row]) -> Chart | None:
    """``rows`` of the view ``concurrency``: to the right is slower, up is more."""
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
        for row in rows
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
