"""A noun's command and its verbs: list, show, add, change, remove, and others on a row.

Noun ─▶ flags ─▶ JSON body ─▶ Backend ─▶ the noun's rows in the API ─▶ the service
"""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from django.core.management.base import CommandError, OutputWrapper

from fleet.errors import FleetError
from fleet.management.backend import Backend, add_backend_arguments, backend_of, rows_of
from fleet.nouns import Field, Kind, Noun, value_of_text
from helexa_site.management.base import ExitCode, QuickCommand
from metering.output import errors_on_one_line, json_text, table_text

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], object]]
FIELD = "field_"
FILTER = "filter_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    options: dict[str, Any]
    backend: Backend
    stdout: OutputWrapper
    stderr: OutputWrapper

    def ask(self, method: str, path: str, body: Row | None = None) -> Any:
        return self.backend.ask(method, path, body)

    def rows(self, path: str) -> list[Row]:
        return rows_of(self.backend, path)

    def given(self, *names: str) -> Row:
        return {name: self.options[name] for name in names if self.options[name] not in (None, "")}

    def show(self, value: Any, text: str) -> None:
        self.stdout.write(json_text(value) if self.options["json"] else text)


def _no_arguments(_parser: ArgumentParser) -> None:
    pass


def _no_body(_run: Run) -> Row:
    return {}


@dataclass(frozen=True)
class Verb:
    """``arguments`` adds flags beside the noun's, and ``body`` reads the request's fields from
    them. ``aliases``: names in earlier releases."""

    noun: Noun
    help: str
    _: KW_ONLY
    name: str = ""
    aliases: tuple[str, ...] = ()
    arguments: Callable[[ArgumentParser], object] = _no_arguments
    body: Callable[[Run], Row] = _no_body
    has_id: ClassVar[bool] = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        if self.has_id:
            metavar = self.noun.id_metavar or self.noun.id_field.upper()
            parser.add_argument("id", metavar=metavar, help=self.noun.id_help or None)
        self.add_flags(parser)
        self.arguments(parser)

    def add_flags(self, parser: ArgumentParser) -> None:
        pass

    def run(self, run: Run) -> None:
        """Raises ``CommandError``, ``FleetError``."""
        raise NotImplementedError

    def row_id(self, run: Run) -> str:
        return self.noun.id_of_word(run.options["id"])

    def path(self, run: Run) -> str:
        """Raises ``CommandError`` for an impossible name."""
        row_id = self.row_id(run)
        if not re.fullmatch(self.noun.id_pattern, row_id):
            hint = f": give its {self.noun.id_field}, {self.noun.id_help}"
            reason = f"There is no {self.noun.word} {row_id!r}{hint if self.noun.id_help else ''}"
            raise CommandError(reason, returncode=ExitCode.NOT_FOUND)
        return f"{self.noun.path}/{quoted(row_id)}"


class Command(QuickCommand):
    subcommands: Sequence[Verb] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="command", required=True)
        for one in self.subcommands:
            inner = parsers.add_parser(
                one.name,
                help=one.help,
                description=one.help,
                aliases=one.aliases,
                epilog=f"also: {', '.join(one.aliases)}" if one.aliases else None,
                conflict_handler="resolve",  # a verb's own flag goes before a server's
            )
            add_backend_arguments(inner)
            one.add_arguments(inner)

    def handle(self, *_args: Any, **options: Any) -> None:
        word = options["command"]
        verb = next(one for one in self.subcommands if word in (one.name, *one.aliases))
        run = Run(
            options=options, backend=backend_of(options), stdout=self.stdout, stderr=self.stderr
        )
        with errors_on_one_line(), run.backend.understood():
            try:
                verb.run(run)
            except FleetError as error:
                raise CommandError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class List(Verb):
    columns: Columns = field(default_factory=dict)
    name: str = "list"
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        flags = {one.name: one.option for one in self.noun.fields}
        for word in self.noun.filters:
            parser.add_argument(
                flags.get(word, f"--{word.replace('_', '-')}"),
                dest=FILTER + word,
                metavar="VALUE",
                help=self.noun.filter_help.get(
                    word, f"only those of this {word}; several by commas"
                ),
            )

    def list_path(self, run: Run, **others: object) -> str:
        given = {word: run.options[FILTER + word] for word in self.noun.filters} | others
        query = urlencode({word: value for word, value in given.items() if value is not None})
        return f"{self.noun.path}?{query}" if query else self.noun.path

    def run(self, run: Run) -> None:
        rows = run.rows(self.list_path(run))
        run.show(rows, rows_text(self.columns, rows))


@dataclass(frozen=True, kw_only=True)
class Show(Verb):
    """``tables``: fields that are lists of rows. ``hidden``: fields that only JSON has."""

    tables: Mapping[str, Columns] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    titles: tuple[str, str] = ("", "")
    name: str = "show"

    def row(self, run: Run) -> Row:
        found: Row = run.ask("GET", self.path(run))
        return found

    def run(self, run: Run) -> None:
        row = self.row(run)
        run.show(row, self.text(row))

    def text(self, row: Row) -> str:
        others = {*self.tables, *self.hidden}
        parts = [pairs_text({name: row[name] for name in row if name not in others}, self.titles)]
        parts += [rows_text(self.tables[name], row[name]) for name in self.tables if row[name]]
        return "\n\n".join(parts)


@dataclass(frozen=True, kw_only=True)
class Add(Verb):
    positional: tuple[str, ...] = ()
    done: str = "Made the {word} {id}."
    name: str = "add"
    has_id = False

    def add_flags(self, parser: ArgumentParser) -> None:
        by_name = {one.name: one for one in self.noun.fields}
        for name in self.positional:
            parser.add_argument(FIELD + name, metavar=name.upper(), help=by_name[name].help)
        others = [one for one in self.noun.fields if one.name not in self.positional]
        add_field_arguments(parser, others, required=True)

    def run(self, run: Run) -> None:
        body = given_fields(run.options, self.noun.fields) | self.body(run)
        self.show(run, run.ask("POST", self.noun.path, body))

    def show(self, run: Run, row: Row) -> None:
        run.show(row, self.done.format(word=self.noun.word, id=row[self.noun.id_field]))


@dataclass(frozen=True, kw_only=True)
class Change(Verb):
    name: str = "change"

    def add_flags(self, parser: ArgumentParser) -> None:
        add_field_arguments(parser, self.noun.changeable)

    def run(self, run: Run) -> None:
        body = given_fields(run.options, self.noun.changeable) | self.body(run)
        if not body:
            flags = ", ".join(one.option for one in self.noun.changeable)
            raise CommandError(f"nothing to change: give {flags}", returncode=ExitCode.USAGE)
        self.change(run, body)

    def change(self, run: Run, body: Row) -> None:
        row = run.ask("PATCH", self.path(run), body)
        run.show(row, f"Changed the {self.noun.word} {self.row_id(run)}.")


@dataclass(frozen=True, kw_only=True)
class Remove(Verb):
    done: str = "Removed the {word} {id}."
    name: str = "remove"

    def add_flags(self, parser: ArgumentParser) -> None:
        add_dry_run_argument(parser)

    def run(self, run: Run) -> None:
        if self.is_removed(run):
            row_id = self.row_id(run)
            run.show({"removed": row_id}, self.done.format(word=self.noun.word, id=row_id))

    def is_removed(self, run: Run) -> bool:
        """Deletes the row; with ``--dry-run`` only shows the effects."""
        if not run.options["dry_run"]:
            run.ask("DELETE", self.path(run))
            return True
        found = run.ask("DELETE", f"{self.path(run)}?dry_run=true")
        run.show(found, "\n".join(map(_would_line, found["would"])) or "Nothing would be done.")
        return False


@dataclass(frozen=True, kw_only=True)
class Do(Verb):
    """Calls the action of the verb's name below the row's path. ``line``: its answer in words."""

    line: Callable[[Row], str] = str
    method: str = "POST"

    def run(self, run: Run) -> None:
        body = self.body(run) if self.method == "POST" else None
        answer = run.ask(self.method, f"{self.path(run)}/{self.name}", body)
        run.show(answer, self.text(run, answer))

    def text(self, _run: Run, answer: Row) -> str:
        return self.line(answer)


def quoted(name: str) -> str:
    return quote(name, safe="")


def cells(*names: str) -> Columns:
    return {name: lambda row, name=name: cell_of(row[name]) for name in names}  # type: ignore[misc]


def cell_of(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def rows_text(columns: Columns, rows: Iterable[Row]) -> str:
    return table_text([*columns], [[cell(row) for cell in columns.values()] for row in rows])


def pairs_text(row: Row, titles: Sequence[str] = ("", "")) -> str:
    return table_text(titles, [[name, cell_of(value)] for name, value in row.items()])


def add_field_arguments(
    parser: ArgumentParser, fields: Iterable[Field], *, required: bool = False
) -> None:
    """Flags that are not given are missing from the options."""
    for one in fields:
        parser.add_argument(
            one.option,
            dest=FIELD + one.name,
            type=_reader_of(one.kind),
            metavar=one.placeholder or (one.flag or one.name).upper().replace("-", "_"),
            default=SUPPRESS,
            required=required and one.is_required,
            help=one.help,
        )


def _reader_of(kind: Kind) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return value_of_text(kind, text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def given_fields(options: dict[str, Any], fields: Iterable[Field]) -> Row:
    return {one.name: options[FIELD + one.name] for one in fields if FIELD + one.name in options}


def add_dry_run_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")


def _would_line(would: Row) -> str:
    detail = f" {json.dumps(would['detail'])}" if would["detail"] else ""
    return f"would {would['action']} {would['object_id']}{detail}"
