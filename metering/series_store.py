"""Adds figures to the rows of series, rolls old rows up, forgets and reads them. SQLite and
PostgreSQL. Gateways and the control add to the same rows: each reads a row under its lock, adds and
writes, in one order of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.db import connections, transaction

from metering.models import SeriesRow
from metering.series import (
    FLEET_NAME,
    MINUTE_S,
    TIERS,
    Figures,
    Kind,
    SeriesKey,
    add,
    boundary_s,
    floor_s,
    moment,
)
from metering.sql import bounded, in_batches, insert_rows, stored_moment, stored_text

MAX_NAME_CHARS = 128
TABLE = SeriesRow._meta.db_table
COLUMNS = ("step_s", "at", "kind", "name", "requests", "figures")
ON_CONFLICT = "ON CONFLICT (kind, name, at, step_s) DO UPDATE SET"
LOCK_AND_READ = f"{ON_CONFLICT} step_s = excluded.step_s RETURNING step_s, at, kind, name, figures"
WRITE = f"{ON_CONFLICT} requests = excluded.requests, figures = excluded.figures"
NO_FIGURES = msgspec.Raw(b"{}")
SECOND_CHARS = len("2026-01-31 12:00:00")
decode_figures = msgspec.json.Decoder(Figures).decode


def figures_add(changes: Mapping[SeriesKey, Mapping[str, int]], *, using: str = "default") -> None:
    """All or none of them. Raises the database's error."""
    if not changes:
        return
    parts: defaultdict[SeriesKey, list[Mapping[str, int]]] = defaultdict(list)
    for key, more in changes.items():
        parts[_stored(key)].append(more)
    keys = sorted(parts)
    with (
        transaction.atomic(using=using, savepoint=False),
        connections[using].cursor() as cursor,
    ):
        new = [(*_columns(key), 0, NO_FIGURES) for key in keys]
        insert_rows(cursor, TABLE, COLUMNS, new, LOCK_AND_READ)
        found = {
            (step_s, str(at)[:SECOND_CHARS], kind, name): decode_figures(figures)
            for step_s, at, kind, name, figures in cursor.fetchall()
        }
        for key in keys:
            for more in parts[key]:
                add(found[_columns(key)], more)
        summed = [(*columns, *_totals(figures)) for columns, figures in found.items()]
        insert_rows(cursor, TABLE, COLUMNS, summed, WRITE)


def _columns(key: SeriesKey) -> tuple[int, str, str, str]:
    return key.step_s, stored_moment(key.at_unix_s * 1_000_000), key.kind.value, key.name


def _totals(figures: Figures) -> tuple[int, msgspec.Raw]:
    return bounded(figures.get("requests", 0)), msgspec.Raw(msgspec.json.encode(figures))


def _stored(key: SeriesKey) -> SeriesKey:
    return key._replace(name=stored_text(key.name, MAX_NAME_CHARS))


ROWS_PER_MOVE = 200


def series_roll_up(*, now_unix_s: float, using: str = "default") -> int:
    tiers = range(len(TIERS))
    return in_batches(lambda: sum(_move(tier, now_unix_s, using) for tier in tiers))


def _move(tier: int, now_unix_s: float, using: str) -> int:
    rows = SeriesRow.objects.using(using)
    with transaction.atomic(using=using):
        due = list(
            rows.select_for_update()
            .filter(step_s=TIERS[tier][0], at__lt=moment(boundary_s(now_unix_s, tier)))
            .order_by("step_s", "at", "kind", "name")[:ROWS_PER_MOVE]
        )
        if due and tier + 1 < len(TIERS):
            figures_add(_coarse(due, TIERS[tier + 1][0]), using=using)
        rows.filter(pk__in=[row.pk for row in due]).delete()
    return len(due)


def _coarse(rows: list[SeriesRow], step_s: int) -> dict[SeriesKey, Figures]:
    changes: dict[SeriesKey, Figures] = {}
    for row in rows:
        at_unix_s = floor_s(row.at.timestamp(), step_s)
        coarse = SeriesKey(step_s, at_unix_s, Kind(row.kind), row.name)
        add(changes.setdefault(coarse, {}), row.figures)
    return changes


def series_points(
    *, kind: Kind, name: str, since_unix_s: float, until_unix_s: float, step_s: int
) -> dict[int, Figures]:
    """By the Unix time at which a step begins: oldest first, without gaps. Rows of every age are
    added up to ``step_s``, which is a multiple of their steps."""
    rows = SeriesRow.objects.filter(
        kind=kind,
        name=name,
        at__gte=moment(floor_s(since_unix_s, step_s)),
        at__lte=moment(int(until_unix_s)),
    )
    first, last = floor_s(since_unix_s, step_s), floor_s(until_unix_s, step_s)
    sums: dict[int, Figures] = {at: {} for at in range(first, last + 1, step_s)}
    for at, figures in rows.order_by("at").values_list("at", "figures"):
        add(sums[floor_s(at.timestamp(), step_s)], figures)
    return sums


def series_devices(*, neuron: str, since_unix_s: float) -> list[str]:
    rows = SeriesRow.objects.filter(
        kind=Kind.DEVICE, name__startswith=f"{neuron}/", at__gte=moment(int(since_unix_s))
    )
    return list(rows.order_by("name").values_list("name", flat=True).distinct())


TRAFFIC_MINUTES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSums:
    """Without refused requests. ``tokens``: of prompts and answers together."""

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
            at=moment(at),
            requests=figures.get("requests", 0) - figures.get("refused", 0),
            tokens=figures.get("prompt_tokens", 0) + figures.get("completion_tokens", 0),
        )
        for at, figures in points.items()
    )
