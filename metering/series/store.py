"""Adds figures to the rows of series, rolls old rows up and forgets the oldest. SQLite and
PostgreSQL.

Gateways and the control add to the same rows: each reads a row under its lock, adds and writes, in
one order of rows. Raw SQL, for gateways write with it: models and their queries would cost more
than the database. Keys are one JSON parameter, so that a statement is the same for any number.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

import msgspec
from django.db import connections, transaction

from metering.models import SeriesRow
from metering.series.figures import Figures, add
from metering.series.steps import TIERS, Kind, SeriesKey, boundary_s, floor_s, moment

MAX_INT64 = 2**63 - 1
MAX_NAME_CHARS = 128
TABLE = SeriesRow._meta.db_table
SQLITE_INSERT = (
    f"INSERT INTO {TABLE} (step_s, at, kind, name, requests, figures) "
    "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), "
    "json_extract(value, '$[3]'), 0, '{}' FROM json_each(%s) WHERE true ON CONFLICT DO NOTHING"
)
SQLITE_SELECT = (
    "SELECT wanted.key, stored.id, stored.figures "
    f"FROM json_each(%s) AS wanted CROSS JOIN {TABLE} AS stored "
    "WHERE stored.step_s = json_extract(wanted.value, '$[0]') "
    "AND stored.at = json_extract(wanted.value, '$[1]') "
    "AND stored.kind = json_extract(wanted.value, '$[2]') "
    "AND stored.name = json_extract(wanted.value, '$[3]')"
)
SQLITE_UPDATE = f"UPDATE {TABLE} SET requests = %s, figures = %s WHERE id = %s"
_POSTGRES_KEYS = (
    "SELECT (one ->> 0)::integer AS step_s, (one ->> 1)::timestamptz AS at, one ->> 2 AS kind, "
    "one ->> 3 AS name, place - 1 AS place "
    "FROM jsonb_array_elements(%s::jsonb) WITH ORDINALITY AS given (one, place)"
)
_IS_STORED = (
    "stored.kind = wanted.kind AND stored.name = wanted.name "
    "AND stored.at = wanted.at AND stored.step_s = wanted.step_s"
)
POSTGRES_INSERT = (
    f"INSERT INTO {TABLE} (step_s, at, kind, name, requests, figures) "
    "SELECT step_s, at, kind, name, 0, '{}' "
    f"FROM ({_POSTGRES_KEYS}) AS wanted "
    f"WHERE NOT EXISTS (SELECT FROM {TABLE} AS stored WHERE {_IS_STORED}) "
    "ORDER BY place ON CONFLICT DO NOTHING"
)
POSTGRES_SELECT = (
    "SELECT wanted.place, stored.id, stored.figures "
    f"FROM ({_POSTGRES_KEYS}) AS wanted JOIN {TABLE} AS stored ON {_IS_STORED} "
    "ORDER BY stored.step_s, stored.at, stored.kind, stored.name FOR UPDATE OF stored"
)
POSTGRES_UPDATE = (
    f"UPDATE {TABLE} SET requests = (one ->> 0)::bigint, figures = one -> 1 "
    "FROM jsonb_array_elements(%s::jsonb) AS one WHERE id = (one ->> 2)::bigint"
)
decode_figures = msgspec.json.Decoder(Figures).decode


def figures_add(changes: Mapping[SeriesKey, Mapping[str, int]], *, using: str = "default") -> None:
    """All or none of them. Raises the database's error."""
    if not changes:
        return
    parts: defaultdict[SeriesKey, list[Mapping[str, int]]] = defaultdict(list)
    for key, more in changes.items():
        parts[_stored(key)].append(more)
    with transaction.atomic(using=using, savepoint=False):
        keys = sorted(parts)
        rows = _locked_rows(keys, using)
        for (_, figures), key in zip(rows, keys, strict=True):
            for more in parts[key]:
                add(figures, more)
        _update(rows, using)


def key_of(row: SeriesRow) -> SeriesKey:
    return _key(row.step_s, row.at, row.kind, row.name)


def _key(step_s: int, at: datetime, kind: str, name: str) -> SeriesKey:
    return SeriesKey(step_s, int(at.timestamp()), Kind(kind), name)


def _locked_rows(keys: Sequence[SeriesKey], using: str) -> list[tuple[int, Figures]]:
    """Ids and figures of their rows, which are made where they are missing. Every writer locks
    rows in one order."""
    written = msgspec.json.encode(
        [(key.step_s, _stored_moment(key.at_unix_s), key.kind, key.name) for key in keys]
    ).decode()
    connection = connections[using]
    is_postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        # Missing rows come first, while no row is locked: an insert may wait for another writer's.
        cursor.execute(POSTGRES_INSERT if is_postgres else SQLITE_INSERT, [written])
        cursor.execute(POSTGRES_SELECT if is_postgres else SQLITE_SELECT, [written])
        found = {place: (row_id, decode_figures(text)) for place, row_id, text in cursor}
    return [found[place] for place in range(len(keys))]


def _update(rows: Collection[tuple[int, Figures]], using: str) -> None:
    written = [
        (
            min(figures.get("requests", 0), MAX_INT64),
            msgspec.Raw(msgspec.json.encode(figures)),
            row_id,
        )
        for row_id, figures in rows
    ]
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(POSTGRES_UPDATE, [msgspec.json.encode(written).decode()])
        else:
            cursor.executemany(
                SQLITE_UPDATE,
                [(requests, bytes(figures).decode(), pk) for requests, figures, pk in written],
            )


def _stored_moment(at_unix_s: int) -> str:
    """Returns a time as Django stores it in SQLite: in UTC, without a zone. Connections to
    PostgreSQL have UTC as their zone."""
    return str(moment(at_unix_s).replace(tzinfo=None))


def _stored(key: SeriesKey) -> SeriesKey:
    """Returns the key with its name as both databases hold it."""
    name = key.name[:MAX_NAME_CHARS].encode("utf-8", "replace").decode().replace("\0", "")
    return key if name == key.name else key._replace(name=name)


ROWS_PER_MOVE = 200
MAX_BATCHES = 500
"""How many batches one call moves; the next call continues."""
PAUSE_S = 0.02
"""Between two batches: SQLite's other writers get their turn."""


def series_roll_up(
    *,
    now_unix_s: float,
    using: str = "default",
    pause: Callable[[float], object] = time.sleep,
) -> int:
    """How many rows were rolled up or forgotten."""
    num_moved = 0
    for _ in range(MAX_BATCHES):
        moved = sum(_move(tier, now_unix_s, using) for tier in range(len(TIERS)))
        if not moved:
            break
        num_moved += moved
        pause(PAUSE_S)
    return num_moved


def _move(tier: int, now_unix_s: float, using: str) -> int:
    """Moves at most ``ROWS_PER_MOVE`` of the tier's oldest rows."""
    rows = SeriesRow.objects.using(using)
    with transaction.atomic(using=using):
        due = list(
            rows.select_for_update()
            .filter(step_s=TIERS[tier].step_s, at__lt=moment(boundary_s(now_unix_s, tier)))
            .order_by("step_s", "at", "kind", "name")[:ROWS_PER_MOVE]
        )
        if due and tier + 1 < len(TIERS):
            figures_add(_coarse(due, TIERS[tier + 1].step_s), using=using)
        rows.filter(pk__in=[row.pk for row in due]).delete()
    return len(due)


def _coarse(rows: list[SeriesRow], step_s: int) -> dict[SeriesKey, Figures]:
    changes: dict[SeriesKey, Figures] = {}
    for row in rows:
        key = key_of(row)
        coarse = key._replace(step_s=step_s, at_unix_s=floor_s(key.at_unix_s, step_s))
        add(changes.setdefault(coarse, {}), row.figures)
    return changes
