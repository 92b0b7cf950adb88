"""Charts of series, for pages that include ``metering/series_wanted.html``: one axis each, steps
for counts, straight lines for the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_GET

from metering.errors import MeteringValueError
from metering.pages import Reader, for_members
from metering.series import (
    DAY_S,
    OUTCOMES,
    RANGES,
    Figures,
    Kind,
    Range,
    errors_of,
    kind_of,
    moment,
    point_fields,
    range_of,
)
from metering.series_store import series_devices, series_points

PALETTE = (
    *("#7c3aed", "#d97706", "#059669", "#0284c7", "#db2777", "#65a30d"),
    *("#4f46e5", "#dc2626", "#0d9488", "#a16207", "#9333ea", "#475569"),
)
FIXED = {
    "answered": "#059669",
    "cancelled": "#64748b",
    "refused": "#d97706",
    "failed": "#dc2626",
    "p50": "#0284c7",
    "p95": "#7c3aed",
    "mean": "#0284c7",
    "most": "#7c3aed",
    "prompt": "#0d9488",
    "answer": "#7c3aed",
}


def colors_of(names: Sequence[str]) -> list[str]:
    """Fixed, or by the name's place among the chart's names: no chart mixes both."""
    others = sorted(set(names) - FIXED.keys())
    free = dict(zip(others, cycle(PALETTE), strict=False))
    return [FIXED.get(name) or free[name] for name in names]


MAX_CODES = 6
OTHERS = "others"
Number = float | int | None
Lines = dict[str, list[Number]]
Points = Mapping[int, Figures]
Chart = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    id: str
    title: str
    lines: Mapping[str, str]
    """Label and field of ``point_fields``; an empty label is the subject's name."""
    unit: str = ""
    is_count: bool = False


FIRST_TOKEN = {"p50": "first_token_p50_ms", "p95": "first_token_p95_ms"}
TOKENS = {"prompt": "prompt_tokens_per_s", "answer": "completion_tokens_per_s"}
REQUESTS = Layout("requests", "Requests", {one: one for one in OUTCOMES}, is_count=True)
TRAFFIC = (
    REQUESTS,
    Layout("first-token", "Until the first token", FIRST_TOKEN, unit="ms"),
    Layout("total", "Until the end", {"p50": "total_p50_ms", "p95": "total_p95_ms"}, unit="ms"),
    Layout("tokens", "Tokens a second", TOKENS),
    Layout(
        "queue",
        "Waiting requests",
        {"mean": "queue_depth", "most": "queue_depth_max"},
        is_count=True,
    ),
)
DEVICES = (
    Layout("busy", "Busy", {"": "busy_percent"}, unit="%"),
    Layout("memory", "Memory used", {"": "memory_used_bytes"}, unit="bytes"),
)


def charts_of(kind: Kind, subjects: Mapping[str, Points], step_s: int) -> list[Chart]:
    shown = {
        name.rpartition("/")[2]: [point_fields(kind, one, step_s) for one in points.values()]
        for name, points in subjects.items()
    }
    first: Points = next(iter(subjects.values()), {})
    labels = labels_of(first)
    charts = []
    for layout in DEVICES if kind is Kind.DEVICE else TRAFFIC:
        lines: Lines = {
            label or name: [point[field] for point in points]
            for name, points in shown.items()
            for label, field in layout.lines.items()
        }
        if layout is REQUESTS or any(any(numbers) for numbers in lines.values()):
            charts.append(_chart(layout, lines, labels))
        if layout is REQUESTS:
            charts += _errors(first, labels)
    return charts


def _chart(layout: Layout, lines: Lines, labels: list[str]) -> Chart:
    """``numbers`` is the input of ``charts.js``: ``labels``, ``lines`` with their ``label``,
    ``color`` and ``data`` (null: nothing was counted), ``unit`` and ``steps``."""
    unit = {"ms": ", in milliseconds", "%": ", in percent"}.get(layout.unit, "")
    names = list(lines)
    return {
        "id": f"series-{layout.id}",
        "title": layout.title,
        "words": f"{layout.title}{unit}: {', '.join(names)}",
        "numbers": {
            "labels": labels,
            "unit": layout.unit,
            "steps": layout.is_count,
            "lines": [
                {"label": name, "color": color, "data": lines[name]}
                for name, color in zip(names, colors_of(names), strict=True)
            ],
        },
    }


def labels_of(points: Points) -> list[str]:
    is_long = max(points, default=0) - min(points, default=0) > DAY_S
    return [f"{moment(at):%m-%d %H:%M}" if is_long else f"{moment(at):%H:%M}" for at in points]


def _errors(points: Points, labels: list[str]) -> list[Chart]:
    by_point = [errors_of(figures) for figures in points.values()]
    totals = sum((Counter(errors) for errors in by_point), Counter[str]())
    if not totals:
        return []
    most = sorted(totals, key=lambda code: (-totals[code], code))
    lines: Lines = {
        code: [errors.get(code, 0) for errors in by_point] for code in sorted(most[:MAX_CODES])
    }
    if rest := most[MAX_CODES:]:
        lines[OTHERS] = [sum(errors.get(code, 0) for code in rest) for errors in by_point]
    return [_chart(Layout("errors", "Errors by code", {}, is_count=True), lines, labels)]


@for_members
@require_GET
def series_panel(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Members see those of their accounts, operators all. Raises ``PermissionDenied``."""
    name, problem, charts, found = request.GET.get("name", ""), "", [], None
    try:
        kind = kind_of(request.GET.get("kind", ""))
        is_theirs = kind is Kind.ACCOUNT and name in reader.accounts
        if not (reader.is_operator or is_theirs):
            raise PermissionDenied
        found = range_of(request.GET.get("range", ""), "", now_unix_s=time.time())
        charts = panel_charts(kind, name, found)
    except MeteringValueError as error:
        problem = str(error)
    context = {
        "charts": charts,
        "problem": problem,
        "ranges": RANGES,
        "range": found,
        "kind": request.GET.get("kind", ""),
        "name": name,
    }
    response = render(request, "metering/series_panel.html", context)
    add_never_cache_headers(response)
    return response


def panel_charts(kind: Kind, name: str, found: Range) -> list[Chart]:

    def points(kind: Kind, name: str) -> Points:
        return series_points(
            kind=kind,
            name=name,
            since_unix_s=found.since_unix_s,
            until_unix_s=found.until_unix_s,
            step_s=found.step_s,
        )

    devices = [name] if kind is Kind.DEVICE else []
    if kind is Kind.NEURON:
        devices = series_devices(neuron=name, since_unix_s=found.since_unix_s)
    by_device = {device: points(Kind.DEVICE, device) for device in devices}
    charts = charts_of(Kind.DEVICE, by_device, found.step_s) if devices else []
    if kind is Kind.DEVICE:
        return charts
    return charts_of(kind, {"": points(kind, name)}, found.step_s) + charts
