"""The numbers of cells as rows in the original's fields, as Markdown and as charts, which are JSON
for the results page's script. A field is a fact of the cell, or a column's statistic, as
``ttft_s_p95``. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from metering.bench.measures import (
    METRICS,
    Comparison,
    Difference,
    Metric,
    Verdict,
    judge,
    judged_metrics,
    median,
    number_text,
    percentile,
    spread_of,
)
from metering.bench.results import Build, Cell, Row, by_series

HEAD = (
    *("target_name", "model_id", "build", "hostname", "gpus"),
    *("git_sha", "build_timestamp", "package_version"),
)
SPEEDS = ("prefill_tps_median", "decode_tps_median")
OF_A_BUILD = ("target_name", "model_id", "build")
REPORTS: Mapping[str, Sequence[str]] = {
    "summary": (
        *("target_name", "model_id", "scenario_id", "prompt_tokens", "ttft_s_median"),
        *("ttft_s_p95", *SPEEDS, "total_s_median", "total_s_p95", "quality_score_mean"),
        *("vram_used_mb", "concurrency", "queue_wait_ms_median", "rejected", "build", "n"),
    ),
    "swap": (
        *(*OF_A_BUILD, "scenario_id", "swap_unload_ms_median", "swap_load_ms_median"),
        *("swap_load_ms_p95", "n"),
    ),
    "scaling": (
        *(*OF_A_BUILD, "scenario_id", "prompt_tokens", *SPEEDS, "ttft_s_median"),
        *("decode_flatness", "n"),
    ),
    "concurrency": (
        *(*OF_A_BUILD, "concurrency", "tps_median", "ttft_s_median", "ttft_p95_s"),
        *("queue_wait_ms_median", "rejected", "knee_concurrency", "n"),
    ),
}
VIEWS = (*REPORTS, "series")
TITLES = {
    "target_name": "engine",
    "model_id": "model",
    "scenario_id": "scenario",
    "build": "build",
    "prompt_tokens": "prompt tok",
    "ttft_s_median": "TTFT s",
    "ttft_s_p95": "TTFT p95 s",
    "ttft_p95_s": "TTFT p95 s",
    "prefill_tps_median": "prefill tok/s",
    "decode_tps_median": "decode tok/s",
    "tps_median": "tok/s",
    "total_s_median": "total s",
    "total_s_p95": "total p95 s",
    "quality_score_mean": "score",
    "vram_used_mb": "VRAM MB",
    "concurrency": "conc",
    "queue_wait_ms_median": "queue ms",
    "rejected": "rej",
    "swap_unload_ms_median": "unload ms",
    "swap_load_ms_median": "load ms",
    "swap_load_ms_p95": "load p95 ms",
    "decode_flatness": "flatness",
    "knee_concurrency": "knee",
    "n": "n",
}
STATISTICS: Mapping[str, Callable[[Sequence[float]], float | None]] = {
    "median": median,
    "mean": lambda values: statistics.fmean(values) if values else None,
    "p95": partial(percentile, percent=95),
    "p99": partial(percentile, percent=99),
}
MEASURED = (*METRICS, "total_s", "queue_wait_ms", "quality_score")
KNEE_LATENCY = 2.0
"""The knee is the most requests at once whose p95 is at most this many times the lightest's."""


def view_rows(view: str, cells: Sequence[Cell]) -> list[Row]:
    """``cells``: all of a series, for the other views the latest ones."""
    match view:
        case "scaling":
            return [_scaling(group) for group in _grouped(cells, ("chat", "prefill", "context"))]
        case "concurrency":
            return [_concurrency(group) for group in _grouped(cells, ("concurrency",))]
        case "series":
            cells = sorted(cells, key=lambda cell: cell.build.age_key)
        case "swap":
            cells = [cell for cell in cells if cell.values["swap_load_ms"]]
    return [cell_row(cell) for cell in cells]


def cell_row(cell: Cell) -> Row:
    rejected = cell.values["rejected"]
    statistics_of = {
        f"{name}_{statistic}": of(cell.values[name])
        for name in MEASURED
        for statistic, of in STATISTICS.items()
    }
    return statistics_of | {
        "target_name": cell.target,
        "model_id": cell.model,
        "scenario_id": cell.scenario,
        "hostname": cell.hostname,
        "gpus": cell.gpus,
        "build": cell.build.build,
        **cell.build.commit,
        "timing": cell.timing,
        "n": cell.num_samples,
        "samples": cell.num_samples,
        "rejected": int(sum(rejected)) if rejected else None,
        "prompt_tokens": _whole(cell.median("prompt_tokens_actual")),
        "concurrency": _whole(cell.median("concurrency")),
        "vram_used_mb": _whole(cell.median("vram_used_mb")),
        "tps_median": cell.median("decode_tps"),
        "ttft_p95_s": cell.median("ttft_p95_s"),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def texts_of(row: Mapping[str, Any]) -> Row:
    words = {name: "" if value is None else value for name, value in row.items()}
    return {
        name: number_text(value) if isinstance(value, float) else value
        for name, value in words.items()
    }


def _grouped(cells: Iterable[Cell], kinds: Sequence[str]) -> list[list[Cell]]:
    groups: dict[tuple[Build, str], list[Cell]] = {}
    for cell in cells:
        kind, *rest = cell.scenario.split(":")
        if kind in kinds and rest:
            groups.setdefault((cell.build, cell.model), []).append(cell)
    return list(groups.values())


def _size(cell: Cell) -> int:
    return int(cell.scenario.split(":")[1])


def _scaling(group: Sequence[Cell]) -> Row:
    """``decode_flatness``: the longest prompt's share of the shortest's speed."""
    points = [cell_row(cell) for cell in group]
    for point, cell in zip(points, group, strict=True):
        point["prompt_tokens"] = point["prompt_tokens"] or _size(cell)
    points.sort(key=lambda point: (point["prompt_tokens"], point["scenario_id"]))
    speeds = [point["decode_tps_median"] for point in points if point["decode_tps_median"]]
    flatness = speeds[-1] / speeds[0] if len(speeds) > 1 else None
    return {**_head(points), "points": points, "decode_flatness": flatness}


def _concurrency(group: Sequence[Cell]) -> Row:
    points = [{**cell_row(cell), "concurrency": _size(cell)} for cell in sorted(group, key=_size)]
    return {**_head(points), "points": points, "knee_concurrency": _knee(points)}


def _head(points: Sequence[Row]) -> Row:
    return {name: points[0][name] for name in HEAD}


def _knee(points: Sequence[Row]) -> int | None:
    """``None`` with fewer than two points: one shows no bend."""
    lightest_s = next((point["ttft_p95_s"] for point in points if point["ttft_p95_s"]), None)
    if len(points) < 2 or lightest_s is None:
        return None
    served = [
        point for point in points if point["ttft_p95_s"] is not None and not point["rejected"]
    ]
    near = [point for point in served if point["ttft_p95_s"] <= KNEE_LATENCY * lightest_s]
    return near[-1]["concurrency"] if near else None


def view_markdown(view: str, rows: Iterable[Row]) -> str:
    if view in ("scaling", "concurrency"):
        rows = [{**row, **point} for row in rows for point in row["points"]]
    names = REPORTS[view]
    return markdown(
        [TITLES[name] for name in names], ([row[name] for name in names] for row in rows)
    )


def markdown(titles: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [titles, *([_cell_text(value) for value in row] for row in rows)]
    head, *rest = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(titles), *rest])


def _cell_text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return number_text(value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def comparison_rows(comparison: Comparison) -> list[Row]:
    return [
        {
            "model_id": model,
            "scenario_id": scenario,
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
        for (model, scenario), differences in comparison.cells.items()
        for one in differences
    ]


def comparison_markdown(comparison: Comparison, before: str, after: str) -> str:
    rows = [
        (
            *(model, scenario, one.metric.name, one.before, one.after),
            None if one.ratio is None else f"{one.ratio:.3f}",
            f"{one.before.num_samples}/{one.after.num_samples}",
            one.verdict,
        )
        for (model, scenario), differences in comparison.cells.items()
        for one in differences
    ]
    titles = ("model", "scenario", "metric", before, after, "ratio", "n", "verdict")
    lines = [markdown(titles, rows)]
    for side, cells in ((before, comparison.only_before), (after, comparison.only_after)):
        lines += [f"\nonly {side}: {model} {scenario}" for model, scenario in cells]
    return "\n".join(lines)


def standings_of(cells: Sequence[Cell]) -> dict[tuple[str, str], list[Row]]:
    """By model and GPUs."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for builds in by_series(cells):
        latest = builds[-1]
        for metric in judged_metrics(latest.scenario):
            if latest.values[metric.name]:
                group = groups.setdefault((latest.model, _gpus_text(latest.gpus)), [])
                group.append(_standing(metric, builds))
    return dict(sorted(groups.items()))


def _gpus_text(gpus: Sequence[str]) -> str:
    counts = {name: gpus.count(name) for name in gpus}
    return ", ".join(name if num == 1 else f"{num} x {name}" for name, num in counts.items())


def _standing(metric: Metric, builds: Sequence[Cell]) -> Row:
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


def trend_charts(cells: Sequence[Cell], target: str) -> list[Row]:
    """``target``'s line is solid and marks its regressions; others are dashed."""
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
) -> Row:
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


def concurrency_chart(rows: Sequence[Row]) -> Row | None:
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
