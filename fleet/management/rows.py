"""Subcommands that every noun of the REST API has: list, show, add, change and remove.

Noun ─▶ flags ─▶ JSON body ─▶ Backend ─▶ the view of that noun ─▶ its service
"""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from django.core.management.base import CommandError

from fleet.management.backend import rows_of
from fleet.management.subcommands import Run
from fleet.nouns import Field, Noun
from fleet.nouns.noun import Kind, value_of_text
from helexa_site.exit_codes import ExitCode
from metering.management.output import table_text

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], object]]
"""A table's columns: title, and the cell of a row."""
FIELD = "field_"
FILTER = "filter_"


def cells(*names: str) -> Columns:
    """Columns of a row's fields under their own names."""
    return {name: lambda row, name=name: cell_of(row[name]) for name in names}  # type: ignore[misc]


def cell_of(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def rows_text(columns: Columns, rows: Iterable[Row]) -> str:
    return table_text([*columns], [[cell(row) for cell in columns.values()] for row in rows])


def row_path(noun: Noun, row_id: object) -> str:
    """Raises ``CommandError`` for what no row can be named."""
    if not re.fullmatch(noun.id_pattern, str(row_id)):
        hint = f": give its {noun.id_field}, {noun.id_help}" if noun.id_help else ""
        reason = f"There is no {noun.word} {str(row_id)!r}{hint}"
        raise CommandError(reason, returncode=ExitCode.NOT_FOUND)
    return f"{noun.path}/{quote(str(row_id), safe='')}"


def add_id_argument(parser: ArgumentParser, noun: Noun) -> None:
    parser.add_argument("id", metavar=noun.id_field.upper(), help=noun.id_help)


def add_field_arguments(
    parser: ArgumentParser, fields: Iterable[Field], *, required: bool = False
) -> None:
    """Adds a flag for each field. One that is not given is not in the options."""
    for one in fields:
        parser.add_argument(
            one.option,
            dest=FIELD + one.name,
            type=reader_of(one.kind),
            metavar=one.placeholder or (one.flag or one.name).upper().replace("-", "_"),
            default=SUPPRESS,
            required=required and one.is_required,
            help=one.help,
        )


def reader_of(kind: Kind) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return value_of_text(kind, text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def given_fields(options: dict[str, Any], fields: Iterable[Field]) -> Row:
    """Returns the JSON body of the flags that were given."""
    return {one.name: options[FIELD + one.name] for one in fields if FIELD + one.name in options}


def add_filter_arguments(parser: ArgumentParser, noun: Noun) -> None:
    flags = {one.name: one.option for one in noun.fields}
    for word in noun.filters:
        parser.add_argument(
            flags.get(word, f"--{word.replace('_', '-')}"),
            dest=FILTER + word,
            metavar="VALUE",
            help=noun.filter_help.get(word, f"only those of this {word}; several by commas"),
        )


def list_path(noun: Noun, options: dict[str, Any]) -> str:
    """The list's path, with the filters that were given."""
    given = {word: options[FILTER + word] for word in noun.filters}
    query = urlencode({word: value for word, value in given.items() if value is not None})
    return f"{noun.path}?{query}" if query else noun.path


@dataclass(frozen=True, kw_only=True)
class ListRows:
    noun: Noun
    columns: Columns
    help: str
    name: str = "list"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_filter_arguments(parser, self.noun)

    def run(self, run: Run) -> None:
        rows = rows_of(run.backend, list_path(self.noun, run.options))
        run.show(rows, rows_text(self.columns, rows))


@dataclass(frozen=True, kw_only=True)
class ShowRow:
    """``tables``: fields of the row that are lists of rows themselves. ``hidden``: fields that
    only JSON has."""

    noun: Noun
    help: str
    tables: Mapping[str, Columns] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    name: str = "show"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)

    def row(self, run: Run) -> Row:
        found: Row = run.backend.ask("GET", row_path(self.noun, row_id_of(self.noun, run.options)))
        return found

    def run(self, run: Run) -> None:
        row = self.row(run)
        run.show(row, self.text(row))

    def text(self, row: Row) -> str:
        others = {*self.tables, *self.hidden}
        plain = [[name, cell_of(value)] for name, value in row.items() if name not in others]
        parts = [table_text(("", ""), plain)]
        parts += [rows_text(self.tables[name], row[name]) for name in self.tables if row[name]]
        return "\n\n".join(parts)


@dataclass(frozen=True, kw_only=True)
class AddRow:
    """``positional``: fields that are given by their place."""

    noun: Noun
    help: str
    positional: tuple[str, ...] = ()
    name: str = "add"
    aliases: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        by_name = {one.name: one for one in self.noun.fields}
        for name in self.positional:
            parser.add_argument(FIELD + name, metavar=name.upper(), help=by_name[name].help)
        others = [one for one in self.noun.fields if one.name not in self.positional]
        add_field_arguments(parser, others, required=True)

    def body(self, run: Run) -> Row:
        return given_fields(run.options, self.noun.fields)

    def run(self, run: Run) -> None:
        row = run.backend.ask("POST", self.noun.path, self.body(run))
        self.show(run, row)

    def show(self, run: Run, row: Row) -> None:
        run.show(row, f"Made the {self.noun.word} {row[self.noun.id_field]}.")


@dataclass(frozen=True, kw_only=True)
class ChangeRow:
    noun: Noun
    help: str
    name: str = "change"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)
        add_field_arguments(parser, self.noun.changeable)

    def body(self, run: Run) -> Row:
        return given_fields(run.options, self.noun.changeable)

    def run(self, run: Run) -> None:
        body = self.body(run)
        if not body:
            flags = ", ".join(one.option for one in self.noun.changeable)
            raise CommandError(f"nothing to change: give {flags}", returncode=ExitCode.USAGE)
        row_id = row_id_of(self.noun, run.options)
        row = run.backend.ask("PATCH", row_path(self.noun, row_id), body)
        run.show(row, f"Changed the {self.noun.word} {row_id}.")


@dataclass(frozen=True, kw_only=True)
class RemoveRow:
    noun: Noun
    help: str
    done: str = "Removed the {word} {id}."
    name: str = "remove"
    aliases: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)
        add_dry_run_argument(parser)

    def run(self, run: Run) -> None:
        row_id = row_id_of(self.noun, run.options)
        if not removed(run, row_path(self.noun, row_id)):
            return
        text = self.done.format(word=self.noun.word, id=row_id)
        run.show({"removed": row_id}, text)


def row_id_of(noun: Noun, options: dict[str, Any]) -> str:
    return noun.id_of_word(options["id"])


def add_dry_run_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")


def removed(run: Run, path: str) -> bool:
    """Delete the row at ``path``; with ``--dry-run`` only show the effects."""
    if not run.options["dry_run"]:
        run.backend.ask("DELETE", path)
        return True
    found = run.backend.ask("DELETE", f"{path}?dry_run=true")
    run.show(found, "\n".join(map(_would_line, found["would"])) or "Nothing would be done.")
    return False


def _would_line(would: Row) -> str:
    detail = f" {json.dumps(would['detail'])}" if would["detail"] else ""
    return f"would {would['action']} {would['object_id']}{detail}"
