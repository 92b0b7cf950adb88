"""How many logins may fail before further ones are refused, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

FAILURES_PER_USER = 5
"""Failures of one user from one address: a stranger elsewhere cannot lock the user out."""
FAILURES_PER_ADDRESS = 50
"""Failures of all users from one address: many may be behind it."""
COOL_OFF = timedelta(minutes=15)
"""A failure counts for so long after the last one of the same user and address."""


def free_at(failures: Iterable[tuple[datetime, int]], limit: int) -> datetime | None:
    """Returns when fewer than ``limit`` failures are left; ``None``: there are fewer now.
    ``failures``: for each user, when the last one was and how many there are."""
    oldest_first = sorted(failures)
    num_left = sum(count for _, count in oldest_first)
    freed_at = None
    for last_at, count in oldest_first:
        if num_left < limit:
            break
        num_left -= count
        freed_at = last_at + COOL_OFF
    return freed_at
