"""CSV of rows, for pages, the REST API and commands."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence

from django.http import HttpResponse

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def csv_headers(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}.csv"'}


def csv_response(name: str, text: str) -> HttpResponse:
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=csv_headers(name))


def _cell(value: object) -> object:
    """A client's text must be no formula in a spreadsheet."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    is_formula = isinstance(value, str) and value.startswith(FORMULA_SIGNS)
    return f"'{value}" if is_formula else value
