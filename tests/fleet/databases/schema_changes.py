"""What of a newer schema breaks code that knows only an older one: a pure comparison.

Old code reads and writes the columns that it knows. So a newer schema may add tables, and columns
that may be left out; it may not take columns away, ask for more in them, or constrain them further.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import django
import msgspec
from django.core.management import call_command


class Column(msgspec.Struct, frozen=True):
    kind: str
    may_be_null: bool
    has_default: bool
    """Whether the database has a default: Django's own are unknown to other code."""


class Table(msgspec.Struct, frozen=True):
    columns: dict[str, Column]
    constraints: dict[str, list[str]]
    """The columns of each that asks for something unique, or checks."""


Schema = dict[str, Table]


SQLITE_COLUMNS = """
    SELECT name, type, NOT "notnull", dflt_value IS NOT NULL FROM pragma_table_info(%s)
"""
POSTGRES_COLUMNS = """
    SELECT column_name, udt_name, is_nullable = 'YES',
           column_default IS NOT NULL OR is_identity = 'YES'
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s
"""


SQLITE_UNIQUE = """
    SELECT list.name, info.name
    FROM pragma_index_list(%s) AS list, pragma_index_info(list.name) AS info
    WHERE list."unique" AND list.origin != 'pk' ORDER BY list.name, info.seqno
"""
POSTGRES_CONSTRAINTS = """
    SELECT index.relname, attribute.attname
    FROM pg_index JOIN pg_class AS index ON index.oid = indexrelid
        JOIN pg_attribute AS attribute ON attribute.attrelid = index.oid
    WHERE indrelid = %s::regclass AND indisunique AND NOT indisprimary
    UNION
    SELECT conname, attname FROM pg_constraint
        JOIN pg_attribute ON attrelid = conrelid AND attnum = ANY(conkey)
    WHERE conrelid = %s::regclass AND contype = 'c'
"""
NAMED_CHECK = re.compile(r'CONSTRAINT "(\w+)" CHECK(.*?)(?=CONSTRAINT "|$)', re.DOTALL)
QUOTED = re.compile(r'"(\w+)"')


def read_schema(connection: Any) -> Schema:
    """Reads the schema of the database that is connected."""
    is_sqlite = connection.vendor == "sqlite"
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
        read = _sqlite_table if is_sqlite else _postgres_table
        return {name: read(cursor, name) for name in names}


def _sqlite_table(cursor: Any, name: str) -> Table:
    cursor.execute(SQLITE_COLUMNS, [name])
    columns = _columns(cursor.fetchall())
    cursor.execute(SQLITE_UNIQUE, [name])
    # An index that a column's UNIQUE made is numbered: its columns are its name.
    unique = _grouped(cursor.fetchall())
    problems = {", ".join(found): found for found in unique.values()}
    cursor.execute("SELECT sql FROM sqlite_master WHERE name = %s", [name])
    checks = {
        key: sorted(columns.keys() & set(QUOTED.findall(condition)))
        for key, condition in NAMED_CHECK.findall(cursor.fetchone()[0])
    }
    return Table(columns, problems | checks)


def _postgres_table(cursor: Any, name: str) -> Table:
    cursor.execute(POSTGRES_COLUMNS, [name])
    columns = _columns(cursor.fetchall())
    cursor.execute(POSTGRES_CONSTRAINTS, [name, name])
    return Table(columns, _grouped(cursor.fetchall()))


def _columns(rows: Iterable[tuple[str, str, object, object]]) -> dict[str, Column]:
    return {key: Column(kind, bool(null), bool(default)) for key, kind, null, default in rows}


def _grouped(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, column in rows:
        found.setdefault(name, []).append(column)
    return found


def broken_by(older: Schema, newer: Schema) -> Iterator[str]:
    for name, table in older.items():
        if name not in newer:
            yield f"{name} is gone"
        else:
            yield from _broken_in(name, table, newer[name])


def _broken_in(name: str, older: Table, newer: Table) -> Iterator[str]:
    for key, column in older.columns.items():
        now = newer.columns.get(key)
        if now is None:
            yield f"{name}.{key} is gone"
        elif now.kind != column.kind:
            yield f"{name}.{key} was {column.kind} and is {now.kind}"
        elif column.may_be_null and not now.may_be_null:
            yield f"{name}.{key} may not be null any more"
    for key, now in newer.columns.items():
        if key not in older.columns and not (now.may_be_null or now.has_default):
            yield f"{name}.{key} is new, and must be given: give it a db_default"
    for constraint, about in newer.constraints.items():
        # A constraint on new columns alone does not affect old code.
        if constraint not in older.constraints and not older.columns.keys().isdisjoint(about):
            yield f"{name} has a new constraint: {constraint}"


def main() -> None:
    """Migrates a database to a release's schema and then to today's. Prints what would break old
    code. ``DATABASE_URL`` is set, and the release's migrations are the argument, as JSON."""
    django.setup()
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    release: dict[str, str] = json.loads(sys.argv[1])
    for app in sorted(MigrationLoader(connection).migrated_apps):
        # Django's own apps are of the version that is installed.
        call_command("migrate", app, *([release[app]] if app in release else []), verbosity=0)
    older = read_schema(connection)
    call_command("migrate", verbosity=0)
    broken = list(broken_by(older, read_schema(connection)))
    print(json.dumps({"tables": len(older), "broken": broken}))


if __name__ == "__main__":
    main()
