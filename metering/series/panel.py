"""``/series/panel``: the charts of a subject, as the part of a page that includes
``metering/series_wanted.html`` with ``kind`` and ``name``."""

from __future__ import annotations

import time

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_GET

from metering import selectors
from metering.errors import MeteringValueError
from metering.series.charts import Chart, device_charts, traffic_charts
from metering.series.kinds import Kind
from metering.series.ranges import RANGES, Range, kind_of, range_of
from metering.usage.reader import Reader, for_members


@for_members
@require_GET
def series_panel(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Members see the series of their accounts, operators all. Raises ``PermissionDenied``."""
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
    """A neuron's are of its requests and of its devices."""
    span = {
        "since_unix_s": found.since_unix_s,
        "until_unix_s": found.until_unix_s,
        "step_s": found.step_s,
    }
    charts: list[Chart] = []
    devices = [name] if kind is Kind.DEVICE else []
    if kind is not Kind.DEVICE:
        points = selectors.series_points(kind=kind, name=name, **span)
        charts += traffic_charts(kind, points, found.step_s)
    if kind is Kind.NEURON:
        devices = selectors.series_devices(neuron=name, since_unix_s=found.since_unix_s)
    by_name = {
        device: selectors.series_points(kind=Kind.DEVICE, name=device, **span) for device in devices
    }
    return charts + (device_charts(by_name, found.step_s) if by_name else [])
