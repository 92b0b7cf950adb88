"""Single runs for the API, the page and CSV: filters, and columns by the original's names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q, QuerySet

from metering.bench.errors import BenchValueError
from metering.bench.models import BenchRun

RUN_FILTERS = ("target", "host", "model", "scenario", "sha", "gpu", "ok")
TEXT_COLUMNS = {
    "gpus": "gpus_json",
    "features": "features_json",
    "capabilities": "capabilities_json",
    "devices": "devices_json",
}
"""JSON that the original sends as text, by its names."""
COLUMNS = tuple(field.name for field in BenchRun._meta.concrete_fields)


def runs_filtered(words: Mapping[str, str]) -> QuerySet[BenchRun]:
    """The newest first; empty words filter nothing. Raises ``BenchValueError``."""
    runs = BenchRun.objects.order_by("-id")
    for name, column in (
        ("target", "target_name"),
        ("host", "hostname"),
        ("model", "model_id"),
        ("scenario", "scenario_id"),
    ):
        if word := words.get(name):
            runs = runs.filter(**{column: word})
    if sha := words.get("sha"):
        runs = runs.filter(Q(git_sha=sha) | Q(build=sha))
    if gpu := words.get("gpu"):
        runs = runs.filter(pk__in=_with_gpu(runs, gpu))
    if ok := words.get("ok"):
        if ok not in ("1", "0", "true", "false"):
            raise BenchValueError("ok", f"{ok!r} is neither true nor false")
        runs = runs.filter(ok=ok in ("1", "true"))
    return runs


def run_row(run: BenchRun) -> dict[str, Any]:
    row = {}
    for name in COLUMNS:
        value = getattr(run, name)
        if name in TEXT_COLUMNS:
            row[TEXT_COLUMNS[name]] = json.dumps(value)
        else:
            row[name] = value.isoformat() if name in ("ts", "build_timestamp") and value else value
    return row


def runs_csv(runs: Iterable[BenchRun]) -> str:
    """One line a run, after the names of the columns. Text that a spreadsheet would compute begins
    with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header: list[str] = []
    for run in runs:
        row = run_row(run)
        if not header:
            header = list(row)
            writer.writerow(header)
        writer.writerow([_cell(value) for value in row.values()])
    if not header:
        writer.writerow([TEXT_COLUMNS.get(name, name) for name in COLUMNS])
    return text.getvalue()


def _with_gpu(runs: QuerySet[BenchRun], gpu: str) -> list[int]:
    """Lists within JSON cannot be asked for on SQLite."""
    return [pk for pk, gpus in runs.values_list("pk", "gpus") if gpu in gpus]


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return f"'{value}"
    return value
