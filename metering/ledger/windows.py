"""The beginning and end of a budget's window. Pure: whole seconds of unix time in UTC, no clock.

balance   ────────────────────────────▶   one window without an end
day       |────────|────────|────────|    from midnight to midnight
month     |──────────────|───────────|    from the first of a month to the next
seconds      |─────|       |─────|        opens with a reservation; closed in between
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

DAY_S = 86_400


class Window(StrEnum):
    BALANCE = "balance"
    DAY = "day"
    MONTH = "month"
    SECONDS = "seconds"


def calendar_end_s(window: Window, now_s: int) -> int:
    """Returns when the calendar window that holds ``now_s`` ends. Only for days and months."""
    if window is Window.DAY:
        return (now_s // DAY_S + 1) * DAY_S
    first = _month_of(now_s)
    year, month = (first.year + 1, 1) if first.month == 12 else (first.year, first.month + 1)
    return int(first.replace(year=year, month=month).timestamp())


def start_s(window: Window, window_s: int | None, ends_s: int) -> int:
    """Returns when the window that ends at ``ends_s`` began."""
    if window is Window.DAY:
        return ends_s - DAY_S
    if window is Window.MONTH:
        return int(_month_of(ends_s - 1).timestamp())
    return ends_s - (window_s or 0)


def _month_of(unix_s: int) -> datetime:
    now = datetime.fromtimestamp(unix_s, UTC)
    return datetime(now.year, now.month, 1, tzinfo=UTC)
