"""Migrates a database to a release's schema and then to today's. Prints what would break old code.
Run by ``test_databases``, with ``DATABASE_URL`` set and the release's migrations as JSON."""

from __future__ import annotations

import json
import sys

import django
from django.core.management import call_command


def main() -> None:
    django.setup()
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    from tests.fleet.databases.schema_changes import broken_by, read_schema

    release: dict[str, str] = json.loads(sys.argv[1])
    for app in sorted(MigrationLoader(connection).migrated_apps):
        # Django's own apps are of the version that is installed.
        call_command("migrate", app, *([release[app]] if app in release else []), verbosity=0)
    older = read_schema(connection)
    call_command("migrate", verbosity=0)
    print(
        json.dumps(
            {"tables": len(older), "broken": list(broken_by(older, read_schema(connection)))}
        )
    )


if __name__ == "__main__":
    main()
