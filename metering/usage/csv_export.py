"""Usage as CSV, the same from the command and from the API."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from metering.selectors import UsageGroup, UsageRow
from metering.selectors.usage import SUMS


def csv_text(by: UsageGroup, rows: Iterable[UsageRow]) -> str:
    """One line a row, after the names of the columns; amounts are integers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([by.value, *SUMS])
    for row in rows:
        writer.writerow([row.name, *(getattr(row.sums, name) for name in SUMS)])
    return text.getvalue()
