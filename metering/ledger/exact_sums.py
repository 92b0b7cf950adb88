"""Sums of large integers that the database cannot overflow.

SQLite ends a query whose SUM passes 64 bits with "integer overflow". So a column is summed in two
halves, which Python puts together: 2^31 rows of the greatest numbers fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import F, Sum

HALF = 2**32


def exact_sums(columns: Iterable[str]) -> dict[str, Sum]:
    """The aggregates to ask for."""
    aggregates: dict[str, Sum] = {}
    for column in columns:
        aggregates[f"{column}_high"] = Sum(F(column) / HALF)
        aggregates[f"{column}_low"] = Sum(F(column) % HALF)
    return aggregates


def exact_sum(row: Mapping[str, Any], column: str) -> int:
    """One column's sum, from a row that has the aggregates; 0 without rows."""
    return int(row[f"{column}_high"] or 0) * HALF + int(row[f"{column}_low"] or 0)
