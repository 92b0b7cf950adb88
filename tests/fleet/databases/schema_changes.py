"""What of a newer schema breaks code that knows only an older one.

Old code reads and writes the columns that it knows. So a newer schema may add tables, and columns
that may be left out; it may not take columns away, ask for more in them, or constrain them further.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.db.migrations.loader import MigrationLoader  # noqa: E402

SQLITE_COLUMNS = """
    SELECT name, type, NOT "notnull", dflt_value IS NOT NULL FROM pragma_table_info(%s)
"""
POSTGRES_COLUMNS = """
    SELECT column_name, udt_name, is_nullable = 'YES',
           column_default IS NOT NULL OR is_identity = 'YES'
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s
"""


class Table(NamedTuple):
    columns: dict[str, tuple[str, bool, bool]]
    """The kind of each, and whether it may be null, and left out: Django's defaults do not count,
    as they are unknown to other code."""
    constraints: set[tuple[str, ...]]
    """The columns of each that asks for something unique, or the columns and name of a check."""


def read_table(cursor: Any, name: str) -> Table:
    cursor.execute(SQLITE_COLUMNS if connection.vendor == "sqlite" else POSTGRES_COLUMNS, [name])
    columns = {
        key: (kind, bool(is_null), bool(is_null or has_default))
        for key, kind, is_null, has_default in cursor.fetchall()
    }
    constraints = connection.introspection.get_constraints(cursor, name).items()
    return Table(
        columns,
        {
            # An index that a column's UNIQUE made is numbered: its columns are its name.
            (*sorted(one["columns"]), key if one["check"] else "")
            for key, one in constraints
            if (one["unique"] or one["check"]) and not one["primary_key"]
        },
    )


def read_schema() -> dict[str, Table]:
    # Django's parser of SQLite's collations stumbles over a check's commas.
    connection.introspection._get_column_collations = lambda *_: {}
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
        return {name: read_table(cursor, name) for name in names}


def broken_by(older: dict[str, Table], newer: dict[str, Table]) -> Iterator[str]:
    for name, table in older.items():
        if name not in newer:
            yield f"{name} is gone"
            continue
        columns = newer[name].columns
        for key, (kind, may_be_null, _) in table.columns.items():
            if columns.get(key, (None,))[0] != kind:
                yield f"{name}.{key} is gone, or no longer {kind}"
            elif may_be_null and not columns[key][1]:
                yield f"{name}.{key} may not be null any more"
        for key in columns.keys() - table.columns.keys():
            if not columns[key][2]:
                yield f"{name}.{key} is new, and must be given: give it a db_default"
        for constraint in newer[name].constraints - table.constraints:
            if not table.columns.keys().isdisjoint(constraint):  # else of new columns alone
                yield f"{name} has a new constraint: {constraint}"


def main() -> None:
    """Migrates ``DATABASE_URL`` to a release's schema and then to today's. Prints what would break
    old code. The release's migrations are the argument, as JSON."""
    release: dict[str, str] = json.loads(sys.argv[1])
    for app in sorted(MigrationLoader(connection).migrated_apps):
        # Django's own apps are of the version that is installed.
        call_command("migrate", app, *([release[app]] if app in release else []), verbosity=0)
    older = read_schema()
    call_command("migrate", verbosity=0)
    print(json.dumps({"tables": len(older), "broken": [*broken_by(older, read_schema())]}))


if __name__ == "__main__":
    main()
