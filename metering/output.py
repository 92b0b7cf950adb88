"""Output of commands, pages and the REST API: tables, JSON, CSV, and one line for an error."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DjangoDatabaseError
from django.http import HttpResponse

from helexa_site.management.base import ExitCode
from helexa_site.program import program
from inference.settings.setting import SettingError
from metering.errors import MeteringError, MeteringValueError, UnknownNameError

WIDTH_OF_FILES = 240
CANNOT_WRITE = ("disk is full", "readonly database")
NO_DATABASE = (
    f"Has it been set up ({program()} serve does so, or {program()} migrate), and may this user "
    "write there? DATABASE_URL and HELEXA_DATA_DIR name it, and have to be what serve's "
    "are."
)


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    from rich.console import Console  # the control imports this module, and prints no table
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[position], int) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_table_cell(value) for value in row))
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else WIDTH_OF_FILES
    console = Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, markup=False, highlight=False
    )
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, default=str)


@contextmanager
def errors_on_one_line() -> Iterator[None]:
    try:
        yield
    except MeteringValueError as error:
        raise CommandError(f"{error.field}: {error}") from error
    except MeteringError as error:
        is_unknown = isinstance(error, UnknownNameError)
        code = ExitCode.NOT_FOUND if is_unknown else ExitCode.REFUSED
        raise CommandError(str(error), returncode=code) from error
    except SettingError as error:
        raise CommandError(str(error)) from error
    except DjangoDatabaseError as error:
        raise CommandError(database_words(error), returncode=ExitCode.UNAVAILABLE) from error


def database_words(error: DjangoDatabaseError) -> str:
    reason = str(error).strip().partition("\n")[0]
    if any(words in reason for words in CANNOT_WRITE):
        return f"The database cannot be written: {reason}"
    return f"The database does not answer as it should: {reason}. {NO_DATABASE}"


def _table_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(value) for value in row])
    return text.getvalue()


def csv_headers(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}.csv"'}


def csv_response(name: str, text: str) -> HttpResponse:
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=csv_headers(name))


def _csv_cell(value: object) -> object:
    """A client's text must be no formula in a spreadsheet."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    is_formula = isinstance(value, str) and value.startswith(FORMULA_SIGNS)
    return f"'{value}" if is_formula else value
