"""Units, and greatest values of settings that have no natural one. Larger values would overflow
a column, a time or a counter somewhere."""

from __future__ import annotations

MIB = 1024**2
GIB = 1024**3
MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**53 - 1
"""What a JSON number holds exactly."""
MAX_WAIT_S = 30 * 24 * 3600
MAX_RETENTION_DAYS = 36_500
"""A century: dates begin with the year 1."""
