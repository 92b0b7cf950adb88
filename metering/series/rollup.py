"""Rolls rows up and forgets old ones, a batch in a transaction: rows that have become old are added
to the coarser row of their time and deleted, so that each request stays counted once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import transaction

from metering.models import SeriesRow
from metering.series.figures import Figures, add
from metering.series.kinds import SeriesKey
from metering.series.steps import TIERS, boundary_s, floor_s, moment
from metering.series.store import figures_add, key_of

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
