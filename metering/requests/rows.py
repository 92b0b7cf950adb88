"""A request record as plain fields, for JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from metering import selectors
from metering.models import RequestRecord

COLUMNS = (
    *("id", "at", "account", "key", "key_name", "end_user", "model_asked", "model", "neuron"),
    *("endpoint", "client", "status", "outcome", "code", "message"),
    *("queue_ms", "time_to_first_token_ms", "duration_ms"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("cost_micro_usd", "is_usage_estimated", "targets_tried", "unit", "num_units"),
)
MAX_CSV_ROWS = 10_000
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def fields_of(record: RequestRecord, key_names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the record's columns by name. ``key_names`` is by prefix."""
    own = {
        "id": record.request_id.hex,
        "at": record.at.isoformat(),
        "key_name": key_names.get(record.key, ""),
    }
    return {name: own[name] if name in own else getattr(record, name) for name in COLUMNS}


def all_fields(records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    names = selectors.key_names(records)
    return [fields_of(record, names) for record in records]


def csv_text(records: Sequence[RequestRecord]) -> str:
    """One line a request, after the names of the columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for fields in all_fields(records):
        writer.writerow([_cell(value) for value in fields.values()])
    return text.getvalue()


def _cell(value: object) -> object:
    """A client's text must be no formula in a spreadsheet."""
    is_formula = isinstance(value, str) and value.startswith(FORMULA_SIGNS)
    return f"'{value}" if is_formula else value
