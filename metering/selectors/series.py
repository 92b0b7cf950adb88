"""Series by subject, and the fleet's traffic of the last minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from metering.models import SeriesRow
from metering.series.figures import Figures, add
from metering.series.steps import FLEET_NAME, MINUTE_S, Kind, floor_s, moment, points_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """``figures``: as ``metering.series.figures`` describes them; empty where nothing happened."""

    at_unix_s: int
    figures: Mapping[str, int] = field(default_factory=dict)


def series_points(
    *, kind: Kind, name: str, since_unix_s: float, until_unix_s: float, step_s: int
) -> list[SeriesPoint]:
    """Oldest first, without gaps, from the step of ``since`` to that of ``until``. Rows of every
    age are added up to steps of ``step_s``, which is a multiple of theirs."""
    rows = SeriesRow.objects.filter(
        kind=kind,
        name=name,
        at__gte=moment(floor_s(since_unix_s, step_s)),
        at__lte=moment(int(until_unix_s)),
    )
    sums: dict[int, Figures] = {at: {} for at in points_of(since_unix_s, until_unix_s, step_s)}
    for at, figures in rows.order_by("at").values_list("at", "figures"):
        add(sums[floor_s(at.timestamp(), step_s)], figures)
    return [SeriesPoint(at_unix_s=at, figures=figures) for at, figures in sums.items()]


def series_devices(*, neuron: str, since_unix_s: float) -> list[str]:
    rows = SeriesRow.objects.filter(
        kind=Kind.DEVICE, name__startswith=f"{neuron}/", at__gte=moment(int(since_unix_s))
    )
    return list(rows.order_by("name").values_list("name", flat=True).distinct())


TRAFFIC_MINUTES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSums:
    """Requests by their end, without refused ones; ``tokens`` are those of prompts and answers
    together."""

    at: datetime
    requests: int
    tokens: int


def traffic(*, now: datetime) -> tuple[MinuteSums, ...]:
    """Oldest first, including minutes without requests; the last one is the present minute."""
    until_unix_s = now.timestamp()
    points = series_points(
        kind=Kind.FLEET,
        name=FLEET_NAME,
        since_unix_s=until_unix_s - (TRAFFIC_MINUTES - 1) * MINUTE_S,
        until_unix_s=until_unix_s,
        step_s=MINUTE_S,
    )
    return tuple(
        MinuteSums(
            at=moment(point.at_unix_s),
            requests=point.figures.get("requests", 0) - point.figures.get("refused", 0),
            tokens=point.figures.get("prompt_tokens", 0)
            + point.figures.get("completion_tokens", 0),
        )
        for point in points
    )
