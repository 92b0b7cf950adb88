"""Samples summed up for people and programs, in the original's fields. Pure over cells.

The API, the report and the pages show these: a number has one place where it is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metering.bench.results.reading import CellValues, by_series
from metering.bench.results.statistics import median, percentile

Row = dict[str, Any]
KNEE_LATENCY = 2.0
"""The knee is the most requests at once whose p95 is at most this many times the lightest's."""


def latest_of_each(cells: Sequence[CellValues]) -> list[CellValues]:
    """The newest build's cell of each series."""
    return [builds[-1] for builds in by_series(cells).values()]


def latest_builds(cells: Sequence[CellValues]) -> list[CellValues]:
    """The cells of each target's newest build."""
    newest: dict[str, str] = {}
    for cell in sorted(cells, key=lambda one: one.build.age_key):
        newest[cell.target] = cell.build.build
    return [cell for cell in cells if newest[cell.target] == cell.build.build]


def summary_row(cell: CellValues) -> Row:
    return {
        "target_name": cell.target,
        "hostname": cell.hostname,
        "gpus": list(cell.gpus),
        **build_fields(cell),
        "model_id": cell.model,
        "scenario_id": cell.scenario,
        "prompt_tokens": _whole(median(cell.of("prompt_tokens_actual"))),
        "ttft_s_median": median(cell.of("ttft_s")),
        "ttft_s_p95": percentile(cell.of("ttft_s"), 95),
        "ttft_s_p99": percentile(cell.of("ttft_s"), 99),
        "decode_tps_median": median(cell.of("decode_tps")),
        "prefill_tps_median": median(cell.of("prefill_tps")),
        "total_s_median": median(cell.of("total_s")),
        "total_s_p95": percentile(cell.of("total_s"), 95),
        "total_s_p99": percentile(cell.of("total_s"), 99),
        "quality_score_mean": mean(cell.of("quality_score")),
        "vram_used_mb": _whole(median(cell.of("vram_used_mb"))),
        "concurrency": _whole(median(cell.of("concurrency"))),
        "queue_wait_ms_median": median(cell.of("queue_wait_ms")),
        "rejected": _total(cell, "rejected"),
        "timing": cell.timing,
        "n": cell.num_samples,
    }


def series_row(cell: CellValues) -> Row:
    return {
        **build_fields(cell),
        "target_name": cell.target,
        "ttft_s_median": median(cell.of("ttft_s")),
        "decode_tps_median": median(cell.of("decode_tps")),
        "prefill_tps_median": median(cell.of("prefill_tps")),
        "total_s_median": median(cell.of("total_s")),
        "quality_score_mean": mean(cell.of("quality_score")),
        "samples": cell.num_samples,
    }


def build_fields(cell: CellValues) -> Row:
    build = cell.build
    return {
        "build": build.build,
        "git_sha": build.git_sha or build.build,
        "build_timestamp": build.built_at.isoformat() if build.built_at else None,
        "package_version": build.package_version,
    }


def scaling_rows(cells: Iterable[CellValues]) -> list[Row]:
    """Speeds over the length of what came before, of the scenarios that have one.
    ``decode_flatness`` is the longest context's share of the shortest's speed."""
    rows = []
    for group in _grouped(cells, ("chat", "prefill", "context")):
        points = sorted(
            map(_scaling_point, group),
            key=lambda point: (point["prompt_tokens"], point["scenario_id"]),
        )
        speeds = [point["decode_tps_median"] for point in points if point["decode_tps_median"]]
        flatness = speeds[-1] / speeds[0] if len(speeds) > 1 else None
        rows.append({**_head(group[0]), "points": points, "decode_flatness": flatness})
    return rows


def concurrency_rows(cells: Iterable[CellValues]) -> list[Row]:
    """Throughput against latency, and the knee: as many at once as are all served, with a p95 of at
    most twice the lightest's."""
    rows = []
    for group in _grouped(cells, ("concurrency",)):
        points = sorted((_concurrency_point(cell) for cell in group), key=_level)
        rows.append({**_head(group[0]), "points": points, "knee_concurrency": knee_of(points)})
    return rows


def knee_of(points: Sequence[Mapping[str, Any]]) -> int | None:
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


def swap_rows(cells: Iterable[CellValues]) -> list[Row]:
    return [
        {
            **_head(cell),
            "scenario_id": cell.scenario,
            "swap_unload_ms_median": median(cell.of("swap_unload_ms")),
            "swap_load_ms_median": median(cell.of("swap_load_ms")),
            "swap_load_ms_p95": percentile(cell.of("swap_load_ms"), 95),
            "n": cell.num_samples,
        }
        for cell in cells
        if cell.of("swap_load_ms")
    ]


def kind_of(cell: CellValues) -> str:
    return cell.scenario.partition(":")[0]


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _scaling_point(cell: CellValues) -> Row:
    asked = int(cell.scenario.split(":")[1])
    return {
        "scenario_id": cell.scenario,
        "prompt_tokens": _whole(median(cell.of("prompt_tokens_actual"))) or asked,
        "decode_tps_median": median(cell.of("decode_tps")),
        "prefill_tps_median": median(cell.of("prefill_tps")),
        "ttft_s_median": median(cell.of("ttft_s")),
        "n": cell.num_samples,
    }


def _concurrency_point(cell: CellValues) -> Row:
    return {
        "concurrency": int(cell.scenario.split(":")[1]),
        "tps_median": median(cell.of("decode_tps")),
        "ttft_s_median": median(cell.of("ttft_s")),
        "ttft_p95_s": median(cell.of("ttft_p95_s")),
        "queue_wait_ms_median": median(cell.of("queue_wait_ms")),
        "rejected": _total(cell, "rejected"),
        "n": cell.num_samples,
    }


def _level(point: Row) -> int:
    return int(point["concurrency"])


def _head(cell: CellValues) -> Row:
    return {
        "target_name": cell.target,
        "hostname": cell.hostname,
        "gpus": list(cell.gpus),
        "model_id": cell.model,
        **build_fields(cell),
    }


def _grouped(cells: Iterable[CellValues], kinds: Sequence[str]) -> list[list[CellValues]]:
    """Cells of these kinds, grouped by target, build and model."""
    groups: dict[tuple[str, str, str], list[CellValues]] = {}
    for cell in cells:
        if kind_of(cell) in kinds and cell.scenario.split(":")[1:2]:
            groups.setdefault((cell.target, cell.build.build, cell.model), []).append(cell)
    return list(groups.values())


def _total(cell: CellValues, name: str) -> int | None:
    values = cell.of(name)
    return int(sum(values)) if values else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
