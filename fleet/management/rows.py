"""Commands of subcommands, and those that every noun has: list, show, add, change, remove, and
other actions on a row.

Noun ─▶ flags ─▶ JSON body ─▶ Backend ─▶ the noun's rows in the API ─▶ the service
"""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from django.core.management.base import CommandError, OutputWrapper

from fleet.errors import FleetError
from fleet.management.backend import Backend, add_backend_arguments, backend_of, rows_of
from fleet.noun import Field, Kind, Noun, value_of_text
from helexa_site.exit_codes import ExitCode
from helexa_site.quick_command import QuickCommand
from metering.management.output import errors_on_one_line, json_text, table_text

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], object]]
"""A table's columns: title, and the cell of a row."""
FIELD = "field_"
FILTER = "filter_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Arguments of a subcommand."""

    options: dict[str, Any]
    backend: Backend
    stdout: OutputWrapper
    stderr: OutputWrapper

    def show(self, value: Any, text: str) -> None:
        """``value`` for programs, ``text`` for people."""
        self.stdout.write(json_text(value) if self.options["json"] else text)


@dataclass(frozen=True)
class Subcommand:
    """Base of an action on one row.

    ``aliases``: its names in earlier releases.
    """

    noun: Noun
    help: str
    _: KW_ONLY
    name: str = ""
    aliases: tuple[str, ...] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_id_argument(parser, self.noun)

    def run(self, run: Run) -> None:
        """Raises ``CommandError``, ``FleetError``."""
        raise NotImplementedError

    def row_id(self, run: Run) -> str:
        return self.noun.id_of_word(run.options["id"])

    def path(self, run: Run) -> str:
        """The row's. Raises ``CommandError``."""
        return row_path(self.noun, self.row_id(run))


class SubcommandsCommand(QuickCommand):
    subcommands: Sequence[Subcommand] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="command", required=True)
        for one in self.subcommands:
            inner = parsers.add_parser(
                one.name,
                help=one.help,
                description=one.help,
                aliases=one.aliases,
                epilog=f"also: {', '.join(one.aliases)}" if one.aliases else None,
                conflict_handler="resolve",  # a subcommand's own flag goes before a server's
            )
            add_backend_arguments(inner)
            one.add_arguments(inner)

    def handle(self, *_args: Any, **options: Any) -> None:
        word = options["command"]
        subcommand = next(one for one in self.subcommands if word in (one.name, *one.aliases))
        run = Run(
            options=options, backend=backend_of(options), stdout=self.stdout, stderr=self.stderr
        )
        with errors_on_one_line(), run.backend.understood():
            try:
                subcommand.run(run)
            except FleetError as error:
                raise CommandError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ListRows(Subcommand):
    columns: Columns = field(default_factory=dict)
    name: str = "list"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_filter_arguments(parser, self.noun)

    def run(self, run: Run) -> None:
        rows = rows_of(run.backend, list_path(self.noun, run.options))
        run.show(rows, rows_text(self.columns, rows))


@dataclass(frozen=True, kw_only=True)
class ShowRow(Subcommand):
    """``tables``: fields of the row that are lists of rows themselves. ``hidden``: fields that only
    JSON has."""

    tables: Mapping[str, Columns] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    name: str = "show"

    def row(self, run: Run) -> Row:
        found: Row = run.backend.ask("GET", self.path(run))
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
class AddRow(Subcommand):
    """``positional``: fields given by their position."""

    positional: tuple[str, ...] = ()
    name: str = "add"

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
class ChangeRow(Subcommand):
    name: str = "change"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_field_arguments(parser, self.noun.changeable)

    def body(self, run: Run) -> Row:
        """Raises ``CommandError`` where nothing is given."""
        return given_fields(run.options, self.noun.changeable)

    def run(self, run: Run) -> None:
        body = self.body(run)
        if not body:
            flags = ", ".join(one.option for one in self.noun.changeable)
            raise CommandError(f"nothing to change: give {flags}", returncode=ExitCode.USAGE)
        row = run.backend.ask("PATCH", self.path(run), body)
        run.show(row, f"Changed the {self.noun.word} {self.row_id(run)}.")


@dataclass(frozen=True, kw_only=True)
class RemoveRow(Subcommand):
    done: str = "Removed the {word} {id}."
    name: str = "remove"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_dry_run_argument(parser)

    def run(self, run: Run) -> None:
        if removed(run, self.path(run)):
            row_id = self.row_id(run)
            run.show({"removed": row_id}, self.done.format(word=self.noun.word, id=row_id))


@dataclass(frozen=True, kw_only=True)
class DoToRow(Subcommand):
    """``POST`` to the action of the subcommand's name below the row's path. ``line``: its answer in
    words."""

    line: Callable[[Row], str] = str

    def body(self, run: Run) -> Row:
        return {}

    def run(self, run: Run) -> None:
        answer = run.backend.ask("POST", f"{self.path(run)}/{self.name}", self.body(run))
        run.show(answer, self.text(run, answer))

    def text(self, run: Run, answer: Row) -> str:
        return self.line(answer)


def cells(*names: str) -> Columns:
    """Columns of a row's fields under their own names."""
    return {name: lambda row, name=name: cell_of(row[name]) for name in names}  # type: ignore[misc]


def cell_of(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def rows_text(columns: Columns, rows: Iterable[Row]) -> str:
    return table_text([*columns], [[cell(row) for cell in columns.values()] for row in rows])


def row_path(noun: Noun, row_id: object) -> str:
    """Raises ``CommandError`` for an impossible name."""
    if not re.fullmatch(noun.id_pattern, str(row_id)):
        hint = f": give its {noun.id_field}, {noun.id_help}" if noun.id_help else ""
        reason = f"There is no {noun.word} {str(row_id)!r}{hint}"
        raise CommandError(reason, returncode=ExitCode.NOT_FOUND)
    return f"{noun.path}/{quote(str(row_id), safe='')}"


def add_id_argument(parser: ArgumentParser, noun: Noun) -> None:
    metavar = noun.id_metavar or noun.id_field.upper()
    parser.add_argument("id", metavar=metavar, help=noun.id_help or None)


def add_field_arguments(
    parser: ArgumentParser, fields: Iterable[Field], *, required: bool = False
) -> None:
    """Adds a flag for each field. Flags that are not given are missing from the options."""
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
    given = {word: options[FILTER + word] for word in noun.filters}
    query = urlencode({word: value for word, value in given.items() if value is not None})
    return f"{noun.path}?{query}" if query else noun.path


def add_dry_run_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")


def removed(run: Run, path: str) -> bool:
    """Deletes the row at ``path``; with ``--dry-run`` only shows the effects."""
    if not run.options["dry_run"]:
        run.backend.ask("DELETE", path)
        return True
    found = run.backend.ask("DELETE", f"{path}?dry_run=true")
    run.show(found, "\n".join(map(_would_line, found["would"])) or "Nothing would be done.")
    return False


def _would_line(would: Row) -> str:
    detail = f" {json.dumps(would['detail'])}" if would["detail"] else ""
    return f"would {would['action']} {would['object_id']}{detail}"
